#include "record/cuda/step_ring.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/fail.h"

namespace moetape::inline v0::cuda {
namespace {

Error never_launched(uint64_t step) {
  return {ErrorCode::kNotCaptured,
          fmt::format("step {}: it was prepared and never launched; its slots are refused", step)};
}

}  // namespace

void StepTicket::look() {
  if (!over_ && link_->ring != nullptr) link_->ring->poll();
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
                   const std::byte* packed, StreamHandle own, AtomicCounters* counters)
    : plan_(plan),
      device_(std::move(device)),
      writer_(std::move(writer)),
      packed_(packed),
      own_(own),
      counters_(counters),
      link_(std::make_shared<RingLink>()) {
  link_->ring = this;
}

Status StepRing::create() {
  MOETAPE_ASSIGN(pinned_, device_->allocate_pinned(plan_.host_bytes()));
  for (size_t i = 0; i < steps_.size(); ++i) {
    StepInFlight& step = steps_[i];
    const int64_t at = static_cast<int64_t>(i) * plan_.step_bytes;
    step.header = new (pinned_.host + at) StepHeader{};
    step.report = new (pinned_.host + at + plan_.report_at) StepReport{};
    step.device_report = reinterpret_cast<StepReport*>(pinned_.device + at + plan_.report_at);
    step.packed = pinned_.host + at + plan_.host_packed_at;
    MOETAPE_ASSIGN(step.home, device_->create_event());
    tickets_.push_back(std::make_shared<StepTicket>(link_));
  }
  // A move of the store waits for steps that only a look brings home.
  writer_.on_wait([link = link_] {
    const std::lock_guard lock(link->mutex);
    if (link->ring != nullptr) link->ring->poll();
  });
  return {};
}

StepRing::~StepRing() {
  const auto held = lock();
  link_->ring = nullptr;
  for (StepInFlight& step : steps_) {
    if (step.home != nullptr) device_->destroy_event(step.home);
  }
  if (pinned_.host != nullptr) device_->free_pinned(pinned_.host);
}

StepInFlight& StepRing::next() {
  StepInFlight& step = at(serial_ + 1);
  poll();
  if (step.under_way) wait_for(step, {});
  return step;
}

std::shared_ptr<StepTicket> StepRing::open(StepInFlight& step, CommitReport report) {
  step.serial = ++serial_;
  step.under_way = true;
  step.followed = false;
  step.on_own = false;
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

Status StepRing::follow(StepInFlight& step, StreamHandle stream) {
  if (!step.under_way || step.followed) return {};
  if (plan_.packs) MOETAPE_TRY(device_->copy(step.packed, packed_, step.count * plan_.packed_stride, stream));
  MOETAPE_TRY(device_->record(step.home, stream));
  step.followed = true;
  step.on_own = stream == own_;
  return {};
}

Status StepRing::follow_all(StreamHandle stream) {
  for (StepInFlight& step : steps_) {
    MOETAPE_TRY(follow(step, stream));
    // Its rows are still to leave the device.
    if (step.under_way && step.on_own) MOETAPE_TRY(device_->wait(stream, step.home));
  }
  return {};
}

bool StepRing::device_done(const StepInFlight& step) const {
  return std::atomic_ref<uint64_t>(step.report->serial).load(std::memory_order_acquire) == step.serial;
}

void StepRing::poll() {
  constexpr uint32_t kLooksPerCheck = 64;
  for (uint64_t serial = oldest(); serial <= serial_; ++serial) {
    StepInFlight& step = at(serial);
    if (!step.under_way) continue;
    const Status home = device_done(step) ? bring_home(step) : Status();
    if (!home) lose(step, home.error());
    if (!step.under_way) continue;
    // Later ones come behind it.
    const Status alive = ++num_looks_ % kLooksPerCheck == 0 ? device_->check_alive() : Status();
    if (alive) return;
    for (; serial <= serial_; ++serial) {
      if (at(serial).under_way) lose(at(serial), alive.error());
    }
  }
}

// Of a step whose kernel is done. A launch that the host saw was followed then; a graph's step is fetched on
// a stream of our own, since nobody may touch the caller's beside him.
Result<bool> StepRing::packed_rows_came(StepInFlight& step) {
  MOETAPE_TRY(follow(step, own_));
  return device_->is_done(step.home);
}

Status StepRing::bring_home(StepInFlight& step) {
  if (plan_.packs) {
    MOETAPE_ASSIGN(const bool came, packed_rows_came(step));
    if (!came) return {};
  }
  CommitReport report = read_report(step);
  if (plan_.packs) place_packed(step, report);
  if (step.lands) writer_.land(step.step);
  if (step.report->abandoned != 0) {
    step.ticket->error_ = never_launched(step.step);
  } else {
    if (step.lands) counters_->count_report(report);
    step.ticket->report_ = std::move(report);
  }
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
  const bool known = step.header->device_slots == nullptr;
  if (known) writer_.refuse(reinterpret_cast<const int64_t*>(step.header + 1), step.count, step.step);
  if (step.lands && known) writer_.land(step.step);
  if (step.lands && !known) writer_.drop(step.step);
  step.ticket->error_ = error;
  end(step);
}

void StepRing::end(StepInFlight& step) {
  step.ticket->over_ = true;
  step.ticket.reset();
  step.under_way = false;
}

// The host refuses slots only when the device is through with the steps before.
void StepRing::wait_for(StepInFlight& step, const std::optional<Error>& error) {
  const Status waited = step.followed ? device_->synchronize(step.home) : Status();
  if (waited) poll();
  if (!step.under_way) return;
  lose(step, error ? *error : waited ? never_launched(step.step) : waited.error());
}

void StepRing::settle(StreamHandle stream, const std::optional<Error>& error) {
  const Status followed = follow_all(stream);
  for (uint64_t serial = oldest(); serial <= serial_; ++serial) {
    StepInFlight& step = at(serial);
    if (step.under_way) wait_for(step, error || followed ? error : std::optional(followed.error()));
  }
}

}  // namespace moetape::inline v0::cuda
