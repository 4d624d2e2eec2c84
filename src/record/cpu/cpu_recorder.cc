#include <utility>

#include "base/fail.h"
#include "record/cpu/commit.h"
#include "record/cpu/lane.h"
#include "record/recorder_impl.h"
#include "store/store_writer.h"

namespace moetape::inline v0 {
namespace {

struct LaneState {
  Lane lane;
  Commit commit;
  bool begun = false;  // by begin(), not by a capture

  void close_step() {
    lane.clear();
    begun = false;
  }
};

class CpuRecorder final : public Recorder::Impl {
 public:
  using Impl::Impl;

  Status make_lanes() {
    lanes_.reserve(static_cast<size_t>(options.num_lanes));
    for (int i = 0; i < options.num_lanes; ++i) {
      MOETAPE_ASSIGN(Lane lane, Lane::create(store->spec(), options.max_rows, &options.id_maps));
      MOETAPE_ASSIGN(StoreWriter writer, StoreWriter::open(store));
      lanes_.push_back({std::move(lane), Commit(std::move(writer), options.max_rows)});
    }
    return {};
  }

  std::string device() const override { return "cpu"; }

  Status begin(int lane, StreamHandle) override {
    MOETAPE_ASSIGN(LaneState * state, lane_at(lane));
    if (state->begun) AtomicCounters::add(counters.abandoned);
    state->close_step();
    state->begun = true;
    return {};
  }

  Status capture(int32_t layer, const IdsView& ids, int lane, int64_t offset, StreamHandle) override {
    MOETAPE_ASSIGN(LaneState * state, lane_at(lane));
    return state->lane.capture(layer, ids, offset);
  }

  Status capture_all(const IdsView& first, int64_t layer_stride, int lane, StreamHandle stream) override {
    IdsView ids = first;
    for (const int32_t layer : store->spec().layers()) {
      const Status captured = capture(layer, ids, lane, 0, stream);
      counters.count_capture(captured.has_value());
      MOETAPE_TRY(captured);
      ids.data = static_cast<const std::byte*>(ids.data) + layer_stride * int_type_bytes(ids.type);
    }
    return {};
  }

  Status fail_step(const Error& error, int lane) override {
    MOETAPE_ASSIGN(LaneState * state, lane_at(lane));
    state->lane.fail_step(error);
    return {};
  }

  Result<Ticket> commit(const Slots& slots, const Layout& layout,
                        const CommitOptions& commit_options) override {
    MOETAPE_ASSIGN(LaneState * state, lane_at(commit_options.lane));
    const Store::Impl::Use use(store->impl());
    auto report = use.check() ? state->commit.run(state->lane, slots, layout, commit_options)
                              : Result<CommitReport>(Failure(use.check().error()));
    state->close_step();
    if (!report) return Failure(std::move(report).error());
    counters.count_report(*report);
    return Ticket(*std::move(report));
  }

  Result<LayerBuffer> layer_buffer(int32_t, int) override { return no_device("layer_buffer"); }
  Result<Ticket> commit(const DeviceSlots&, const Layout&, const CommitOptions&) override {
    return no_device("commit of slots on a device");
  }
  Result<Ticket> prepare(const Slots&, const Layout&, const CommitOptions&) override {
    return no_device("prepare");
  }
  Result<Ticket> prepare(const DeviceSlots&, const Layout&, const CommitOptions&) override {
    return no_device("prepare");
  }
  Status launch(int, StreamHandle) override { return no_device("launch"); }

 private:
  Result<LaneState*> lane_at(int lane) {
    MOETAPE_TRY(check_lane(lane));
    return &lanes_[static_cast<size_t>(lane)];
  }
  static Failure no_device(const char* what) {
    return fail(ErrorCode::kUnsupported, "{}: expected a recorder on a device, this one is on the CPU", what);
  }

  std::vector<LaneState> lanes_;
};

}  // namespace

Result<std::unique_ptr<Recorder::Impl>> make_cpu_recorder(std::shared_ptr<Store> store,
                                                          const RecorderOptions& options) {
  auto recorder = std::make_unique<CpuRecorder>(std::move(store), options);
  MOETAPE_TRY(recorder->make_lanes());
  return recorder;
}

}  // namespace moetape::inline v0
