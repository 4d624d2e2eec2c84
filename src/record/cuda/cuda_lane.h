// CudaLane: one staging buffer on a device, and the way of its steps into the store.
//
// One thread at a time, as Recorder says; tickets look at the ring from any. Between begin and launch nothing
// is allocated, and nothing waits unless the ring is full.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "record/capture_log.h"
#include "record/cuda/device.h"
#include "record/cuda/plan.h"
#include "record/cuda/step_ring.h"
#include "record/step_slots.h"

namespace moetape::inline v0::cuda {

// The store as the device has it.
struct MappedStore {
  std::byte* rows = nullptr;
  std::byte* stamps = nullptr;
  uint64_t* landed = nullptr;  // of this lane's writer
};

// A layer's table on the device.
struct DeviceIdMap {
  const int32_t* to_logical = nullptr;
  int64_t size = 0;
};
using DeviceIdMaps = std::map<int32_t, DeviceIdMap>;  // by global layer

class CudaLane {
 public:
  // memory: plan.device_bytes of the device's, at a multiple of 256. The maps and `own`, a stream of the
  // recorder's, outlive the lane.
  CudaLane(const LanePlan& plan, std::shared_ptr<Device> device, StoreWriter writer,
           const MappedStore& mapped, std::byte* memory, StreamHandle own, const DeviceIdMaps* id_maps,
           AtomicCounters* counters);
  // Waits for all that the lane has on the device, kernels that commit nothing too.
  ~CudaLane();
  // Fills the device's memory by its kernels; waits.
  Status create();

  Status begin(StreamHandle stream);
  Status capture(int32_t layer, const IdsView& ids, int64_t offset, StreamHandle stream);
  Status capture_all(const IdsView& first, int64_t layer_stride, StreamHandle stream);
  void fail_step(const Error& error) { log_.fail_step(error); }
  Result<LayerBuffer> layer_buffer(int32_t layer);

  // AnySlots: Slots or DeviceSlots.
  template <class AnySlots>
  Result<Ticket> prepare(const AnySlots& slots, const Layout& layout, const CommitOptions& options);
  Status launch(StreamHandle stream);
  void poll();

 private:
  struct Checked {
    Placement placement;
    int64_t batch_rows = 0;
  };
  Status check_ids(const IdsView& ids, int64_t layer_stride, int32_t num_layers) const;
  void enter_graph(uint64_t capture);
  Result<CaptureLog*> log_of(StreamHandle stream);
  void saw_in_graph(int32_t column, int64_t num_rows);
  Status follow(StreamHandle stream);
  Status abandon(StreamHandle stream);
  Status resolve(const Slots& slots);
  Status resolve(const DeviceSlots& slots) const;
  template <class AnySlots>
  Result<Checked> check(const AnySlots& slots, const Layout& layout, const CommitOptions& options);
  int64_t fill(StepInFlight& step, const Slots& slots, const Checked& checked, const CommitOptions& options);
  int64_t fill(StepInFlight& step, const DeviceSlots& slots, const Checked& checked,
               const CommitOptions& options);
  int64_t fill_versions(StepInFlight& step, const Placement& placement, int64_t num_entries,
                        const CommitOptions& options) const;
  Status send(const StepInFlight& step, int64_t bytes, StreamHandle stream);
  void give_up(const Error& error, StreamHandle stream);
  // The slots from `first` on that a device which failed did not refuse any more; those that lie on it the
  // host does not know.
  void refuse_rest(const Slots& slots, int64_t first, uint64_t step, bool lands);
  void refuse_rest(const DeviceSlots& slots, int64_t first, uint64_t step, bool lands);
  template <class AnySlots>
  Status refuse(const AnySlots& slots, uint64_t step, bool lands, StreamHandle stream);
  CommitArgs commit_args(int64_t graph_rows = 0) const;
  PoisonArgs poison_args() const { return {plan_.shape, memory_, plan_.shape.max_rows}; }
  const Store::Impl& store() { return ring_.writer().store(); }

  LanePlan plan_;
  std::shared_ptr<Device> device_;
  MappedStore mapped_;
  std::byte* memory_;
  StreamHandle own_;
  const DeviceIdMaps* id_maps_;
  AtomicCounters* counters_;
  Geometry geometry_;
  int64_t num_slots_;
  int64_t pad_slot_;
  RouteSpec spec_;
  StepSlots slots_;
  CaptureLog log_;
  CaptureLog graph_log_;            // of the capture that was seen last
  uint64_t capture_ = 0;            // its number
  int64_t graph_rows_ = 0;          // the most that captures in graphs wrote
  std::vector<uint8_t> elsewhere_;  // by column: written by a router or by a graph, which the host cannot see
  EventHandle behind_ = nullptr;
  std::optional<StreamHandle> stream_;  // of the last call
  bool begun_ = false;                  // by begin(), not by a capture
  bool failed_ = false;                 // ids of a step that failed may stand in the lane
  StepInFlight* prepared_ = nullptr;    // not launched by launch(); a graph may have
  StepRing ring_;
};

}  // namespace moetape::inline v0::cuda
