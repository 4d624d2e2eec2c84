#include "moetape/recorder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "record/commit.h"
#include "record/cpu/lane.h"
#include "store/store_writer.h"

namespace moetape::inline v0 {

std::string_view row_fault_name(RowFault fault) {
  constexpr std::array<std::string_view, kNumRowFaults> kNames = {"negative", "too_large", "repeated",
                                                                  "shared", "superseded"};
  return kNames[static_cast<size_t>(fault)];
}

namespace {

struct LaneState {
  Lane lane;
  Commit commit;
  bool begun = false;  // by begin(), not by a capture
};

struct AtomicCounters {
  std::atomic<int64_t> captures = 0, failed_captures = 0, commits = 0, failed_commits = 0, abandoned = 0,
                       rows_kept = 0, rows_refused = 0, rows_no_slot = 0;
};

void count(std::atomic<int64_t>& counter, int64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

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

}  // namespace

struct Recorder::Impl {
  Impl(std::shared_ptr<Store> owner, const RecorderOptions& recorder_options)
      : store(std::move(owner)), options(recorder_options) {}

  Result<LaneState*> lane_at(int lane) {
    if (lane < 0 || lane >= options.num_lanes) {
      return fail(ErrorCode::kOutOfRange, "lane: expected 0 to {}, got {}", options.num_lanes - 1, lane);
    }
    return &lanes[static_cast<size_t>(lane)];
  }

  void close_step(LaneState& state) {
    state.lane.clear();
    state.begun = false;
  }

  std::shared_ptr<Store> store;
  RecorderOptions options;
  std::vector<LaneState> lanes;
  AtomicCounters counters;
};

Result<int64_t> Recorder::required_bytes(const RouteSpec& spec, int64_t num_slots,
                                         const RecorderOptions& options) {
  MOETAPE_TRY(check_options(spec, options));
  MOETAPE_TRY(Store::required_bytes(spec, num_slots));
  MOETAPE_ASSIGN(const int64_t lane_bytes, Lane::required_bytes(spec, options.max_rows));
  const auto bytes = checked_add(lane_bytes, Commit::required_bytes(num_slots, options.max_rows));
  const auto all_bytes = bytes ? checked_multiply(*bytes, options.num_lanes) : std::nullopt;
  if (!all_bytes) {
    return fail(ErrorCode::kInvalidArgument, "num_lanes: {} lanes of {} rows are more than memory can have",
                options.num_lanes, options.max_rows);
  }
  return *all_bytes;
}

Result<std::unique_ptr<Recorder>> Recorder::create(std::shared_ptr<Store> store,
                                                   const RecorderOptions& options) {
  MOETAPE_ASSIGN(const int64_t bytes, required_bytes(store->spec(), store->num_slots(), options));
  if (options.memory_limit_bytes > 0 && bytes > options.memory_limit_bytes) {
    return fail(ErrorCode::kMemoryLimit,
                "recorder of {} rows in {} lanes: expected at most {} bytes, needs {}", options.max_rows,
                options.num_lanes, options.memory_limit_bytes, bytes);
  }
  MOETAPE_TRY(Store::Impl::Use(store->impl()).check());
  return guard_memory("recorder", [&]() -> Result<std::unique_ptr<Recorder>> {
    auto impl = std::make_unique<Impl>(std::move(store), options);
    impl->lanes.reserve(static_cast<size_t>(options.num_lanes));
    for (int i = 0; i < options.num_lanes; ++i) {
      MOETAPE_ASSIGN(Lane lane, Lane::create(impl->store->spec(), options.max_rows, &impl->options.id_maps));
      MOETAPE_ASSIGN(StoreWriter writer, StoreWriter::open(impl->store));
      impl->lanes.push_back({std::move(lane), Commit(std::move(writer), options.max_rows)});
    }
    return std::unique_ptr<Recorder>(new Recorder(std::move(impl)));
  });
}

Recorder::Recorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Recorder::~Recorder() = default;

const RouteSpec& Recorder::spec() const { return impl_->store->spec(); }
int64_t Recorder::max_rows() const { return impl_->options.max_rows; }
int Recorder::num_lanes() const { return impl_->options.num_lanes; }

Status Recorder::begin(int lane) {
  MOETAPE_ASSIGN(LaneState * state, impl_->lane_at(lane));
  if (state->begun) count(impl_->counters.abandoned);
  impl_->close_step(*state);
  state->begun = true;
  return {};
}

Status Recorder::capture(int32_t layer, const IdsView& ids, int lane, int64_t offset) {
  const auto captured = [&]() -> Status {
    MOETAPE_ASSIGN(LaneState * state, impl_->lane_at(lane));
    return state->lane.capture(layer, ids, offset);
  }();
  count(captured ? impl_->counters.captures : impl_->counters.failed_captures);
  return captured;
}

Status Recorder::capture_all(const IdsView& first, int64_t layer_stride, int32_t num_layers, int lane) {
  const auto layers = spec().layers();
  if (num_layers != spec().num_moe_layers()) {
    const Failure failure =
        fail(ErrorCode::kWrongShape, "ids: expected {} layers, got {}", layers.size(), num_layers);
    MOETAPE_TRY(fail_step(failure.value(), lane));
    return failure;
  }
  IdsView ids = first;
  for (const int32_t layer : layers) {
    MOETAPE_TRY(capture(layer, ids, lane));
    ids.data = static_cast<const std::byte*>(ids.data) + layer_stride * int_type_bytes(ids.type);
  }
  return {};
}

Status Recorder::fail_step(const Error& error, int lane) {
  count(impl_->counters.failed_captures);
  MOETAPE_ASSIGN(LaneState * state, impl_->lane_at(lane));
  state->lane.fail_step(error);
  return {};
}

Result<Ticket> Recorder::commit(const Slots& slots, const Layout& layout, const CommitOptions& options) {
  MOETAPE_ASSIGN(LaneState * state, impl_->lane_at(options.lane));
  const Store::Impl::Use use(impl_->store->impl());
  auto report = use.check() ? state->commit.run(state->lane, slots, layout, options)
                            : Result<CommitReport>(Failure(use.check().error()));
  impl_->close_step(*state);
  if (!report) {
    count(impl_->counters.failed_commits);
    return Failure(std::move(report).error());
  }
  count(impl_->counters.commits);
  count(impl_->counters.rows_kept, report->num_kept);
  count(impl_->counters.rows_refused, report->num_refused);
  count(impl_->counters.rows_no_slot, report->num_no_slot);
  return Ticket(*report);
}

RecorderCounters Recorder::counters() const {
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
