// The fixture of tests that tell what a recorder on a simulated device does, by both commit paths.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moetape/recorder.h"
#include "record/cuda/cuda_test_util.h"

namespace moetape::inline v0::cuda {

using Mode = SimulatedDevice::Mode;

inline const auto kBothPaths = testing::Values(CommitPath::kMapped, CommitPath::kPacked);
inline std::string path_name(const testing::TestParamInfo<CommitPath>& path) {
  return path.param == CommitPath::kMapped ? "Mapped" : "Packed";
}

class OnDevice : public testing::TestWithParam<CommitPath> {
 protected:
  void make(RouteSpecFields fields, RecorderOptions options, Mode device_mode = Mode::kAtOnce,
            StoreOptions store_options = {.num_slots = 16}) {
    mode = device_mode;
    recorder.reset();
    device = std::make_shared<SimulatedDevice>(mode);
    store = value_of(Store::create(value_of(RouteSpec::create(std::move(fields))), store_options));
    options.cuda.emplace().path = GetParam();
    recorder = value_of(make_simulated(store, options, device));
    forward = device->make_stream();
  }
  Status capture(int32_t layer, const Ids& ids, int lane = 0, int64_t offset = 0) {
    return recorder->capture(layer, on_device(*device, ids, recorder->spec().top_k()), lane, offset, forward);
  }
  void capture_layers(const Ids& ids, int lane = 0) {
    for (const int32_t layer : recorder->spec().layers()) expect_ok(capture(layer, ids, lane));
  }
  // All layers, written by the router itself.
  void write_layers(const Ids& ids, StreamHandle stream, int lane = 0) {
    for (const int32_t layer : recorder->spec().layers())
      expect_ok(write_buffer(*device, value_of(recorder->layer_buffer(layer, lane)), ids, stream));
  }
  Result<Ticket> commit(const std::vector<int64_t>& slots, const Layout& layout = Layout::whole(),
                        CommitOptions options = {}) {
    if (options.stream == nullptr) options.stream = forward;
    return recorder->commit(Slots(slots), layout, options);
  }
  Result<Ticket> prepare(const std::vector<int64_t>& slots, const Layout& layout = Layout::whole(),
                         CommitOptions options = {}) {
    options.stream = forward;
    return recorder->prepare(Slots(slots), layout, options);
  }
  CommitReport landed(const Ticket& ticket) {
    if (mode == Mode::kByHand) {
      device->run_all();
      if (!ticket.ready()) device->run_all();  // the first look may ask for packed rows
    }
    expect_ok(ticket.wait());
    EXPECT_TRUE(ticket.report().landed);
    return ticket.report();
  }
  CommitReport step(const std::vector<int64_t>& slots, const Ids& ids, const CommitOptions& options = {}) {
    expect_ok(recorder->begin(options.lane, forward));
    capture_layers(ids, options.lane);
    return landed(value_of(commit(slots, Layout::whole(), options)));
  }
  std::vector<std::string> rows(const std::vector<int64_t>& slots) const { return shown(*store, slots); }
  static int64_t refused_for(const CommitReport& report, RowFault fault) {
    return report.num_by_fault[static_cast<size_t>(fault)];
  }

  Mode mode = Mode::kAtOnce;
  std::shared_ptr<SimulatedDevice> device;
  std::shared_ptr<Store> store;
  std::unique_ptr<Recorder> recorder;
  StreamHandle forward = nullptr;
};

}  // namespace moetape::inline v0::cuda
