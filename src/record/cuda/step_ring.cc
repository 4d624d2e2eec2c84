#include "record/cuda/step_ring.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/fail.h"

namespace moetape::inline v0::cuda {

void StepTicket::look() {
  if (!over_ && link_->ring != nullptr) static_cast<void>(link_->ring->poll());  // an error is the tickets'
}

bool StepTicket::ready() {
  const std::lock_guard lock(link_->mutex);
  look();
  return over_;
}

Status StepTicket::wait(std::chrono::milliseconds timeout) {
  constexpr int kYields = 64;
  constexpr std::chrono::microseconds kPause{20};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int round = 0; !ready(); ++round) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::kTimeout, "ticket of step {}: not landed after {} ms", report().step,
                  timeout.count());
    }
    if (round < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  const std::lock_guard lock(link_->mutex);
  return error_ ? Status(Failure(*error_)) : Status();
}

CommitReport StepTicket::report() {
  const std::lock_guard lock(link_->mutex);
  look();
  return report_;
}

StepRing::StepRing(const LanePlan& plan, std::shared_ptr<Device> device, StoreWriter writer,
                   const std::byte* packed, AtomicCounters* counters)
    : plan_(plan),
      device_(std::move(device)),
      writer_(std::move(writer)),
      packed_(packed),
      counters_(counters),
      link_(std::make_shared<RingLink>()) {
  link_->ring = this;
}

Status StepRing::create() {
  MOETAPE_ASSIGN(pinned_, device_->allocate_pinned(plan_.host_bytes()));
  MOETAPE_ASSIGN(tail_, device_->create_event());
  for (size_t i = 0; i < steps_.size(); ++i) {
    StepInFlight& step = steps_[i];
    const int64_t at = static_cast<int64_t>(i) * plan_.step_bytes;
    step.header = new (pinned_.host + at) StepHeader{};
    step.report = new (pinned_.host + at + plan_.report_at) StepReport{};
    step.device_report = reinterpret_cast<StepReport*>(pinned_.device + at + plan_.report_at);
    step.packed = pinned_.host + at + plan_.host_packed_at;
    if (plan_.packs) {
      MOETAPE_ASSIGN(step.fetched, device_->create_event());
    }
    tickets_.push_back(std::make_shared<StepTicket>(link_));
  }
  return {};
}

StepRing::~StepRing() {
  const auto held = lock();
  settle(stream_);
  link_->ring = nullptr;
  for (StepInFlight& step : steps_) {
    if (step.fetched != nullptr) device_->destroy_event(step.fetched);
  }
  if (tail_ != nullptr) device_->destroy_event(tail_);
  if (pinned_.host != nullptr) device_->free_pinned(pinned_.host);
}

Result<StepInFlight*> StepRing::next(StreamHandle stream) {
  StepInFlight& step = at(serial_ + 1);
  MOETAPE_TRY(poll());
  if (step.under_way) settle(stream);
  stream_ = stream;
  return &step;
}

std::shared_ptr<StepTicket> StepRing::open(StepInFlight& step, CommitReport report) {
  step.serial = ++serial_;
  step.under_way = true;
  step.fetching = false;
  step.header->serial = step.serial;
  step.header->report = step.device_report;
  auto unused = std::ranges::find_if(tickets_, [](const auto& ticket) { return ticket.use_count() == 1; });
  if (unused == tickets_.end()) unused = tickets_.insert(unused, std::make_shared<StepTicket>(link_));
  StepTicket& ticket = **unused;
  ticket.over_ = false;
  ticket.error_.reset();
  ticket.report_ = std::move(report);
  step.ticket = *unused;
  return *unused;
}

Status StepRing::fetch(StepInFlight& step, StreamHandle stream) {
  if (!plan_.packs || !step.under_way || step.fetching) return {};
  step.fetching = true;
  MOETAPE_TRY(device_->copy(step.packed, packed_, step.count * plan_.packed_stride, stream));
  return device_->record(step.fetched, stream);
}

Status StepRing::fetch_all(StreamHandle stream) {
  for (StepInFlight& step : steps_) MOETAPE_TRY(fetch(step, stream));
  return {};
}

bool StepRing::device_done(const StepInFlight& step) const {
  return std::atomic_ref<uint64_t>(step.report->serial).load(std::memory_order_acquire) == step.serial;
}

Status StepRing::poll() {
  const uint64_t oldest = serial_ < kStepsInFlight ? 1 : serial_ - kStepsInFlight + 1;
  uint64_t newest_done = 0;
  for (uint64_t serial = oldest; serial <= serial_; ++serial) {
    if (at(serial).under_way && device_done(at(serial))) newest_done = serial;
  }
  for (uint64_t serial = oldest; serial <= newest_done; ++serial) {
    StepInFlight& step = at(serial);
    if (!step.under_way) continue;
    if (!device_done(step)) {
      lose(step, {ErrorCode::kNotCaptured,
                  fmt::format("step {}: it was prepared and never launched; its rows are lost", step.step)});
      continue;
    }
    const Status home = bring_home(step);
    if (!home) lose(step, home.error());
    if (step.under_way) return {};  // its rows are on their way; later steps come behind it
  }
  return {};
}

Status StepRing::bring_home(StepInFlight& step) {
  if (plan_.packs) {
    // Only a graph's step is fetched here: a launch that the host saw was fetched then.
    if (!step.fetching) {
      MOETAPE_ASSIGN(const bool capturing, device_->is_capturing(stream_));
      if (capturing) return {};
      MOETAPE_TRY(fetch(step, stream_));
    }
    MOETAPE_ASSIGN(const bool fetched, device_->is_done(step.fetched));
    if (!fetched) return {};
  }
  CommitReport report = read_report(step);
  if (plan_.packs) place_packed(step, report);
  if (step.lands) {
    writer_.land(step.step);
    counters_->count_report(report);
  }
  step.ticket->report_ = std::move(report);
  end(step);
  return {};
}

CommitReport StepRing::read_report(const StepInFlight& step) const {
  const StepReport& from = *step.report;
  const auto layers = writer_.store().spec.layers();
  CommitReport report = step.ticket->report_;
  report.landed = true;
  report.num_refused = from.num_refused;
  report.num_no_slot = from.num_no_slot;
  report.num_out_of_range = from.num_out_of_range;
  report.num_kept = step.num_ours - report.num_refused - report.num_no_slot - report.num_out_of_range;
  report.num_elsewhere = report.num_tokens - step.num_ours;
  for (size_t i = 0; i < report.num_by_fault.size(); ++i) report.num_by_fault[i] = from.num_by_fault[i];
  if (from.offender_row != kNoOffender) {
    const auto fault = static_cast<RowFault>(from.offender_fault);
    report.first_offender = {
        .layer = from.offender_layer < 0 ? -1 : layers[static_cast<size_t>(from.offender_layer)],
        .row = from.offender_row,
        .value = fault == RowFault::kUnwritten ? 0 : from.offender_value,
        .fault = fault};
  }
  if (from.any_unwritten == 0) return report;
  const auto* rows = reinterpret_cast<const uint32_t*>(step.report + 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (rows[i] > 0) report.unwritten.push_back({layers[i], rows[i]});
  }
  return report;
}

// As record/cpu places its lane.
void StepRing::place_packed(const StepInFlight& step, CommitReport& report) {
  std::array<int64_t, kBlockSlots> slots;
  std::array<Stamp, kBlockSlots> stamps;
  const int64_t row_stride = plan_.packed_stride - 16;
  for (int64_t first = 0; first < step.count; first += kBlockSlots) {
    const int64_t count = std::min(kBlockSlots, step.count - first);
    const std::byte* rows = step.packed + first * plan_.packed_stride;
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* behind = rows + i * plan_.packed_stride + row_stride;
      std::memcpy(&stamps[static_cast<size_t>(i)], behind, 8);
      std::memcpy(&slots[static_cast<size_t>(i)], behind + 8, 8);
    }
    const auto before = slots;
    if (writer_.place(slots.data(), count, rows, plan_.packed_stride, stamps.data()) == 0) continue;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      if (slots[i] != Plane::kSuperseded || version_of(stamps[i]) == kRefusedVersion) continue;
      const int64_t row = step.src + first + static_cast<int64_t>(i);
      if (!report.first_offender || report.first_offender->row > row)
        report.first_offender = Offender{-1, row, before[i], RowFault::kSuperseded};
      report.num_by_fault[static_cast<size_t>(RowFault::kSuperseded)] += 1;
      report.num_refused += 1;
      report.num_kept -= 1;
    }
  }
}

void StepRing::lose(StepInFlight& step, const Error& error) {
  if (step.lands) writer_.drop(step.step);
  step.ticket->error_ = error;
  end(step);
}

void StepRing::end(StepInFlight& step) {
  step.ticket->over_ = true;
  step.ticket.reset();
  step.under_way = false;
}

void StepRing::settle(StreamHandle stream) {
  // Twice, since packed rows may only be asked for once their kernel has run.
  for (int round = 0; round < 2; ++round) {
    const bool any = std::ranges::any_of(steps_, [](const StepInFlight& step) { return step.under_way; });
    if (!any) return;
    Status waited = device_->record(tail_, stream);
    if (waited) waited = device_->synchronize(tail_);
    if (waited) waited = poll();
    if (waited) continue;
    for (StepInFlight& step : steps_) {
      if (step.under_way) lose(step, waited.error());
    }
  }
  for (StepInFlight& step : steps_) {
    if (!step.under_way) continue;
    lose(step, {ErrorCode::kNotCaptured,
                fmt::format("step {}: it was prepared and never launched; its rows are lost", step.step)});
  }
}

}  // namespace moetape::inline v0::cuda
