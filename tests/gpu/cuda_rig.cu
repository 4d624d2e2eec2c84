#include <cuda_runtime_api.h>

#include <stdexcept>

#include "tests/gpu/rig.h"

namespace moetape::inline v0::cuda {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <class Args>
__global__ void item_kernel(const Args args) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_items(args); i += stride)
    run_item(args, i);
}

__global__ void spin_kernel(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

class CudaRig final : public Rig {
 public:
  explicit CudaRig(std::shared_ptr<Device> device) : device_(std::move(device)) {
    check(cudaSetDevice(0));
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }

  std::string name() const override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    return properties.name;
  }
  bool measures() const override { return true; }
  std::shared_ptr<Device> device() override { return device_; }
  StreamHandle make_stream() override {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void begin_capture(StreamHandle stream) override {
    check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeGlobal));
  }
  std::unique_ptr<Graph> end_capture(StreamHandle stream) override {
    cudaGraph_t graph;
    check(cudaStreamEndCapture(stream_of(stream), &graph));
    return std::make_unique<CudaGraph>(graph);
  }
  void delay(StreamHandle stream) override {
    constexpr int64_t kCycles = 4'000'000;  // some 2 ms
    spin_kernel<<<1, 1, 0, stream_of(stream)>>>(kCycles);
    check(cudaGetLastError());
  }
  void synchronize(StreamHandle stream) override { check(cudaStreamSynchronize(stream_of(stream))); }
  void launch(const GateArgs& args, StreamHandle stream) override { run(args, stream); }
  void launch(const CopyLayerArgs& args, StreamHandle stream) override { run(args, stream); }
  void launch(const ScatterArgs& args, StreamHandle stream) override { run(args, stream); }
  void start_clock(StreamHandle stream) override { check(cudaEventRecord(start_, stream_of(stream))); }
  double stop_clock(StreamHandle stream) override {
    check(cudaEventRecord(stop_, stream_of(stream)));
    check(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1000.0 * milliseconds;
  }

 private:
  class CudaGraph final : public Graph {
   public:
    explicit CudaGraph(cudaGraph_t graph) : graph_(graph) { check(cudaGraphInstantiate(&exec_, graph_, 0)); }
    ~CudaGraph() override {
      cudaGraphExecDestroy(exec_);
      cudaGraphDestroy(graph_);
    }
    void replay(StreamHandle stream) override { check(cudaGraphLaunch(exec_, stream_of(stream))); }
    int64_t num_nodes() const override {
      size_t count = 0;
      check(cudaGraphGetNodes(graph_, nullptr, &count));
      return static_cast<int64_t>(count);
    }

   private:
    cudaGraph_t graph_;
    cudaGraphExec_t exec_ = nullptr;
  };

  template <class Args>
  void run(const Args& args, StreamHandle stream) {
    const int64_t blocks = (num_items(args) + 255) / 256;
    item_kernel<<<static_cast<unsigned>(blocks < 1 ? 1 : blocks), 256, 0, stream_of(stream)>>>(args);
    check(cudaGetLastError());
  }

  std::shared_ptr<Device> device_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace

std::unique_ptr<Rig> make_cuda_rig() {
  auto device = open_device(0);
  if (!device) throw std::runtime_error(device.error().message);
  return std::make_unique<CudaRig>(*std::move(device));
}

}  // namespace moetape::inline v0::cuda
