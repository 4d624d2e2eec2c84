#include "moetape/recorder.h"

#include <array>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "record/cpu/lane.h"
#include "record/cuda/cuda_recorder.h"
#include "record/recorder_impl.h"
#include "record/step_slots.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {

std::string_view row_fault_name(RowFault fault) {
  constexpr std::array<std::string_view, kNumRowFaults> kNames = {"negative", "too_large",  "repeated",
                                                                  "shared",   "superseded", "unwritten"};
  return kNames[static_cast<size_t>(fault)];
}

namespace {

Status check_options(const RouteSpec& spec, const RecorderOptions& options) {
  if (options.num_lanes < 1 || options.num_lanes >= WriterTable::kMaxWriters) {
    return fail(ErrorCode::kInvalidArgument, "num_lanes: expected 1 to {}, got {}",
                WriterTable::kMaxWriters - 1, options.num_lanes);
  }
  if (options.memory_limit_bytes < 0) {
    return fail(ErrorCode::kInvalidArgument, "memory_limit_bytes: expected 0 (none) or more, got {}",
                options.memory_limit_bytes);
  }
  for (const auto& [layer, map] : options.id_maps) {
    MOETAPE_TRY(spec.column_of(layer));
  }
  return {};
}

Result<std::unique_ptr<Recorder::Impl>> make_impl(std::shared_ptr<Store> store,
                                                  const RecorderOptions& options) {
  if (!options.cuda) return make_cpu_recorder(std::move(store), options);
  MOETAPE_ASSIGN(auto device, cuda::open_device(options.cuda->device));
  return cuda::make_recorder(std::move(store), options, std::move(device));
}

}  // namespace

Status Recorder::Impl::check_lane(int lane) const {
  if (lane >= 0 && lane < options.num_lanes) return {};
  return fail(ErrorCode::kOutOfRange, "lane: expected 0 to {}, got {}", options.num_lanes - 1, lane);
}

Result<int64_t> Recorder::required_bytes(const RouteSpec& spec, int64_t num_slots,
                                         const RecorderOptions& options) {
  MOETAPE_TRY(check_options(spec, options));
  MOETAPE_TRY(Store::required_bytes(spec, num_slots));
  MOETAPE_ASSIGN(const int64_t lane_bytes, options.cuda ? cuda::host_bytes(spec, options)
                                                        : Lane::required_bytes(spec, options.max_rows));
  const auto bytes = checked_add(lane_bytes, StepSlots::required_bytes(num_slots, options.max_rows));
  const auto all_bytes = bytes ? checked_multiply(*bytes, options.num_lanes) : std::nullopt;
  if (!all_bytes) {
    return fail(ErrorCode::kInvalidArgument, "num_lanes: {} lanes of {} rows are more than memory can have",
                options.num_lanes, options.max_rows);
  }
  return *all_bytes;
}

Result<int64_t> Recorder::required_device_bytes(const RouteSpec& spec, const RecorderOptions& options) {
  MOETAPE_TRY(check_options(spec, options));
  if (!options.cuda) return 0;
  return cuda::device_bytes(spec, options);
}

Result<std::unique_ptr<Recorder>> Recorder::create(std::shared_ptr<Store> store,
                                                   const RecorderOptions& options) {
  MOETAPE_ASSIGN(const int64_t bytes, required_bytes(store->spec(), store->num_slots(), options));
  if (options.memory_limit_bytes > 0 && bytes > options.memory_limit_bytes) {
    return fail(ErrorCode::kMemoryLimit,
                "recorder of {} rows in {} lanes: expected at most {} bytes, needs {}", options.max_rows,
                options.num_lanes, options.memory_limit_bytes, bytes);
  }
  const std::shared_ptr<Store> kept = store;  // longer than `use`
  const Store::Impl::Use use(kept->impl());
  MOETAPE_TRY(use.check());
  return guard_memory("recorder", [&]() -> Result<std::unique_ptr<Recorder>> {
    MOETAPE_ASSIGN(auto impl, make_impl(std::move(store), options));
    return Impl::wrap(std::move(impl));
  });
}

Recorder::Recorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Recorder::~Recorder() = default;

const RouteSpec& Recorder::spec() const { return impl_->store->spec(); }
int64_t Recorder::max_rows() const { return impl_->options.max_rows; }
int Recorder::num_lanes() const { return impl_->options.num_lanes; }
std::string Recorder::device() const { return impl_->device(); }

Status Recorder::begin(int lane, StreamHandle stream) { return impl_->begin(lane, stream); }

Status Recorder::capture(int32_t layer, const IdsView& ids, int lane, int64_t offset, StreamHandle stream) {
  const Status captured = impl_->capture(layer, ids, lane, offset, stream);
  impl_->counters.count_capture(captured.has_value());
  return captured;
}

Status Recorder::capture_all(const IdsView& first, int64_t layer_stride, int32_t num_layers, int lane,
                             StreamHandle stream) {
  if (num_layers != spec().num_moe_layers()) {
    const Failure failure =
        fail(ErrorCode::kWrongShape, "ids: expected {} layers, got {}", spec().num_moe_layers(), num_layers);
    MOETAPE_TRY(fail_step(failure.value(), lane));
    return failure;
  }
  return impl_->capture_all(first, layer_stride, lane, stream);
}

Status Recorder::fail_step(const Error& error, int lane) {
  impl_->counters.count_capture(false);
  return impl_->fail_step(error, lane);
}

Result<LayerBuffer> Recorder::layer_buffer(int32_t layer, int lane) {
  return impl_->layer_buffer(layer, lane);
}

namespace {

Result<Ticket> counted(AtomicCounters& counters, Result<Ticket> ticket) {
  AtomicCounters::add(ticket ? counters.commits : counters.failed_commits);
  return ticket;
}

}  // namespace

Result<Ticket> Recorder::commit(const Slots& slots, const Layout& layout, const CommitOptions& options) {
  return counted(impl_->counters, impl_->commit(slots, layout, options));
}
Result<Ticket> Recorder::commit(const DeviceSlots& slots, const Layout& layout,
                                const CommitOptions& options) {
  return counted(impl_->counters, impl_->commit(slots, layout, options));
}
Result<Ticket> Recorder::prepare(const Slots& slots, const Layout& layout, const CommitOptions& options) {
  return counted(impl_->counters, impl_->prepare(slots, layout, options));
}
Result<Ticket> Recorder::prepare(const DeviceSlots& slots, const Layout& layout,
                                 const CommitOptions& options) {
  return counted(impl_->counters, impl_->prepare(slots, layout, options));
}
Status Recorder::launch(int lane, StreamHandle stream) { return impl_->launch(lane, stream); }

RecorderCounters Recorder::counters() const {
  impl_->update_counters();
  const auto get = [](const std::atomic<int64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const AtomicCounters& all = impl_->counters;
  return {
      .captures = get(all.captures),
      .failed_captures = get(all.failed_captures),
      .commits = get(all.commits),
      .failed_commits = get(all.failed_commits),
      .abandoned = get(all.abandoned),
      .rows_kept = get(all.rows_kept),
      .rows_refused = get(all.rows_refused),
      .rows_no_slot = get(all.rows_no_slot),
  };
}

}  // namespace moetape::inline v0
