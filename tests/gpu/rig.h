// Rig: what the program needs of a machine besides the recorder's Device: streams, graphs, delays, time, and
// the kernels of a model's gates. One is a GPU, one a simulation for the dry run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "record/cuda/bodies.h"
#include "record/cuda/device.h"

namespace moetape::inline v0::cuda {

// A gate of one layer: row r chooses top_k of num_experts. Writes int32 ids, or int16 ids into a lane.
struct GateArgs {
  int64_t num_rows;
  int32_t layer;
  int32_t top_k;
  int32_t num_experts;
  const int32_t* step;  // in device memory: the choice changes with it
  int32_t* ids;
  int16_t* lane_ids;
};

// What SGLang and vLLM do a layer: the ids go into [row][layer][k] int32 on the device.
struct CopyLayerArgs {
  int64_t num_rows;
  int32_t layer;
  int32_t num_layers;
  int32_t top_k;
  const int32_t* ids;
  int32_t* buffer;
};

// What LightLLM does a layer: the ids go, narrow, to pinned host memory [slot][layer][k].
struct ScatterArgs {
  int64_t num_rows;
  int32_t layer;
  int32_t num_layers;
  int32_t top_k;
  const int32_t* ids;
  const int64_t* slots;
  uint8_t* host;
};

MOETAPE_HOST_DEVICE inline int32_t chosen(int64_t row, int32_t layer, int32_t k, int32_t step,
                                          int32_t num_experts) {
  return static_cast<int32_t>((row * 7 + layer * 13 + step * 5 + k * 29) % num_experts);
}

MOETAPE_HOST_DEVICE inline int64_t num_items(const GateArgs& args) { return args.num_rows * args.top_k; }
MOETAPE_HOST_DEVICE inline int64_t num_items(const CopyLayerArgs& args) { return args.num_rows * args.top_k; }
MOETAPE_HOST_DEVICE inline int64_t num_items(const ScatterArgs& args) { return args.num_rows * args.top_k; }

MOETAPE_HOST_DEVICE inline void run_item(const GateArgs& args, int64_t i) {
  const auto k = static_cast<int32_t>(i % args.top_k);
  const int32_t id = chosen(i / args.top_k, args.layer, k, *args.step, args.num_experts);
  if (args.ids != nullptr) args.ids[i] = id;
  if (args.lane_ids != nullptr) args.lane_ids[i] = static_cast<int16_t>(id);
}
MOETAPE_HOST_DEVICE inline void run_item(const CopyLayerArgs& args, int64_t i) {
  args.buffer[(i / args.top_k * args.num_layers + args.layer) * args.top_k + i % args.top_k] = args.ids[i];
}
MOETAPE_HOST_DEVICE inline void run_item(const ScatterArgs& args, int64_t i) {
  const int64_t slot = args.slots[i / args.top_k];
  args.host[(slot * args.num_layers + args.layer) * args.top_k + i % args.top_k] =
      static_cast<uint8_t>(args.ids[i]);
}

class Rig {
 public:
  class Graph {
   public:
    virtual ~Graph() = default;
    virtual void replay(StreamHandle stream) = 0;
    virtual int64_t num_nodes() const = 0;
  };

  virtual ~Rig() = default;
  virtual std::string name() const = 0;  // "NVIDIA H200", "simulated"
  virtual bool measures() const = 0;     // whether its times mean anything
  virtual std::shared_ptr<Device> device() = 0;
  virtual StreamHandle make_stream() = 0;
  virtual void begin_capture(StreamHandle stream) = 0;
  virtual std::unique_ptr<Graph> end_capture(StreamHandle stream) = 0;
  // Keeps a stream busy for some milliseconds.
  virtual void delay(StreamHandle stream) = 0;
  virtual void synchronize(StreamHandle stream) = 0;
  // That calls leave the thread, the runtime's last error and captures of others as they were, and that what
  // would kill the context is refused; throws at the first that does not hold. Gives how many it tried: 0
  // where nothing of that can be.
  virtual int64_t check_manners() = 0;
  virtual void launch(const GateArgs& args, StreamHandle stream) = 0;
  virtual void launch(const CopyLayerArgs& args, StreamHandle stream) = 0;
  virtual void launch(const ScatterArgs& args, StreamHandle stream) = 0;
  // Marks of time on a stream.
  virtual void start_clock(StreamHandle stream) = 0;
  virtual double stop_clock(StreamHandle stream) = 0;  // microseconds; waits
};

std::unique_ptr<Rig> make_simulated_rig();
std::unique_ptr<Rig> make_cuda_rig();  // throws where there is no GPU

}  // namespace moetape::inline v0::cuda
