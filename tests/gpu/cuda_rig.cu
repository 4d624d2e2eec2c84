#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <thread>

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

// Of the calling thread, as the driver sees it.
bool has_context() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, CUDART_VERSION, cudaEnableDefault,
                                         &result));
  CUcontext current = nullptr;
  if (found == nullptr || reinterpret_cast<decltype(&cuCtxGetCurrent)>(found)(&current) != CUDA_SUCCESS)
    throw std::runtime_error("the driver does not say which context is current");
  return current != nullptr;
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
  int64_t check_manners() override;
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

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

template <class T>
void require_refused(const Result<T>& result, const char* what) {
  require(!result && result.error().code == ErrorCode::kInvalidArgument, what);
}

int64_t CudaRig::check_manners() {
  const StreamHandle stream = make_stream();
  const auto memory = device_->allocate(4096);
  require(memory.has_value(), "no memory");

  PoisonArgs poison = {};
  poison.shape.num_layers = 1;
  poison.shape.top_k = 8;
  poison.shape.lane_id_bytes = 2;
  poison.shape.max_rows = 16;
  poison.lane = *memory;
  poison.num_rows = 16;
  const auto event = device_->create_event();
  require(event.has_value(), "no event");

  // An older error of the application is neither taken for ours nor taken away.
  delay(stream);
  static_cast<void>(cudaSetDevice(-1));
  const cudaError_t older = cudaPeekAtLastError();
  require(older != cudaSuccess, "no error to leave alone");
  require(device_->launch(poison, stream).has_value(), "the application's error was taken for ours");
  require(device_->record(*event, stream).has_value(), "the event was not recorded");
  require(device_->is_done(*event).has_value(), "looking at an event failed");
  require(cudaGetLastError() == older, "the application's last error is another");

  // A capture of this thread in the strictest mode goes on beside creation, looks and destruction.
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeGlobal));
  const auto second = device_->allocate(4096);
  const auto pinned = device_->allocate_pinned(4096);
  const auto own = device_->create_stream();
  const auto beside = device_->create_event();
  require(second && pinned && own && beside, "nothing can be created beside a capture");
  require(device_->copy(*second, pinned->host, 64, *own) && device_->record(*beside, *own) &&
              device_->synchronize(*beside),
          "a stream of our own stands still beside a capture");
  require(device_->is_done(*event).has_value(), "looking at an event failed beside a capture");
  require(device_->launch(poison, stream).has_value(), "the kernels were not loaded beforehand");
  device_->destroy_event(*beside);
  device_->destroy_stream(*own);
  device_->free_pinned(pinned->host);
  device_->free(*second);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph));  // fails where any of it has ended the capture
  check(cudaGraphDestroy(graph));

  // A thread that never saw a device has no context behind our calls.
  bool clean = false;
  std::thread fresh([&] {
    static_cast<void>(device_->is_done(*event));
    static_cast<void>(device_->check_memory(*memory, 16, "memory"));
    clean = !has_context();
  });
  fresh.join();
  require(clean, "our calls left a context in a thread that had none");

  require_refused(device_->check_stream(cudaStreamPerThread), "cudaStreamPerThread was taken");
  int host = 0;
  require_refused(device_->check_memory(&host, sizeof host, "host"), "host memory was taken");
  require(device_->check_alive().has_value(), "the device is dead");
  synchronize(stream);
  device_->destroy_event(*event);
  device_->free(*memory);
  return 10;
}

}  // namespace

std::unique_ptr<Rig> make_cuda_rig() {
  auto device = open_device(0);
  if (!device) throw std::runtime_error(device.error().message);
  return std::make_unique<CudaRig>(*std::move(device));
}

}  // namespace moetape::inline v0::cuda
