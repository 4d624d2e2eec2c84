// The Device that is one, by the CUDA runtime. The runtime is linked in and finds the driver when it is first
// asked, so that a program without one runs.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/fail.h"
#include "record/cuda/context.h"
#include "record/cuda/device.h"
#include "record/cuda/kernels.h"

namespace moetape::inline v0::cuda {
namespace {

Failure device_error(const char* what, cudaError_t error) {
  static_cast<void>(cudaGetLastError());  // it is told here, and shall not meet the application's next look
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceFailed;
  return fail(code, "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Status checked(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return device_error(what, error);
}

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(EventHandle event) { return static_cast<cudaEvent_t>(event); }

// Of what has no way to fail for a caller.
void ignored(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
}

// The runtime refuses to pin memory twice; recorders of one store share it.
class Pinned {
 public:
  Status add(std::byte* memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (const auto found = users_.find(memory); found != users_.end()) {
      found->second += 1;
      return {};
    }
    MOETAPE_TRY(checked("pinning the store's memory",
                        cudaHostRegister(memory, static_cast<size_t>(bytes),
                                         cudaHostRegisterMapped | cudaHostRegisterPortable)));
    users_[memory] = 1;
    return {};
  }
  void remove(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    if (--users_[memory] > 0) return;
    users_.erase(memory);
    ignored(cudaHostUnregister(memory));
  }
  static Pinned& instance() {
    static Pinned pinned;
    return pinned;
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, int> users_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, int num_multiprocessors, Context context)
      : index_(index), num_multiprocessors_(num_multiprocessors), context_(std::move(context)) {}
  ~CudaDevice() override {
    if (pulse_ != nullptr) destroy_event(pulse_);
  }
  // Loads the kernels: the first launch of each may be under capture, where nothing can be loaded.
  Status create() {
    const Context::Entered entered(context_);
    MOETAPE_ASSIGN(pulse_, create_event());
    if (const cudaError_t error = load_kernels(); error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return fail(ErrorCode::kUnsupported, "cuda:{}: this build has no kernels for it: {} ({})", index_,
                  cudaGetErrorString(error), cudaGetErrorName(error));
    }
    return {};
  }

  int index() const override { return index_; }
  int num_multiprocessors() const override { return num_multiprocessors_; }

  Result<std::byte*> allocate(int64_t bytes) override {
    const Context::Entered entered(context_);
    void* memory = nullptr;
    MOETAPE_TRY(checked("device memory", cudaMalloc(&memory, static_cast<size_t>(bytes))));
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) override {
    const Context::Entered entered(context_);
    ignored(cudaFree(memory));
  }

  Result<MappedMemory> allocate_pinned(int64_t bytes) override {
    const Context::Entered entered(context_);
    void* host = nullptr;
    MOETAPE_TRY(checked("pinned memory", cudaHostAlloc(&host, static_cast<size_t>(bytes),
                                                       cudaHostAllocMapped | cudaHostAllocPortable)));
    auto device = mapped_address(host);
    if (!device) free_pinned(static_cast<std::byte*>(host));
    MOETAPE_TRY(device);
    return MappedMemory{static_cast<std::byte*>(host), *device};
  }
  void free_pinned(std::byte* host) override {
    const Context::Entered entered(context_);
    ignored(cudaFreeHost(host));
  }

  Result<std::byte*> map_host(std::byte* memory, int64_t bytes) override {
    const Context::Entered entered(context_);
    MOETAPE_TRY(Pinned::instance().add(memory, bytes));
    auto device = mapped_address(memory);
    if (!device) Pinned::instance().remove(memory);
    return device;
  }
  void unmap_host(std::byte* memory) override {
    const Context::Entered entered(context_);
    Pinned::instance().remove(memory);
  }

  Status check_memory(const void* data, int64_t bytes, const char* name) override {
    const Context::Entered entered(context_);
    const auto* first = static_cast<const std::byte*>(data);
    for (const std::byte* at : {first, first + bytes - 1}) {
      cudaPointerAttributes attributes = {};
      MOETAPE_TRY(checked(name, cudaPointerGetAttributes(&attributes, at)));
      const bool on_device =
          attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
      if (on_device && attributes.device == index_) continue;
      return fail(ErrorCode::kInvalidArgument, "{}: expected memory of cuda:{}, got {}", name, index_,
                  on_device ? fmt::format("memory of cuda:{}", attributes.device)
                  : attributes.type == cudaMemoryTypeHost ? "pinned host memory"
                                                          : "host memory");
    }
    return {};
  }

  Status check_stream(StreamHandle stream) override {
    if (stream_of(stream) == nullptr || stream_of(stream) == cudaStreamLegacy) return {};
    if (stream_of(stream) == cudaStreamPerThread) {
      return fail(ErrorCode::kInvalidArgument,
                  "stream: expected one of cuda:{} or the default stream, got cudaStreamPerThread, which is "
                  "another one in every thread",
                  index_);
    }
    const Context::Entered entered(context_);
    int device = -1;
    MOETAPE_TRY(checked("stream", cudaStreamGetDevice(stream_of(stream), &device)));
    if (device == index_) return {};
    return fail(ErrorCode::kInvalidArgument, "stream: expected one of cuda:{}, got one of cuda:{}", index_,
                device);
  }

  Result<uint64_t> capture_of(StreamHandle stream) override {
    const Context::Entered entered(context_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    MOETAPE_TRY(checked("stream", cudaStreamGetCaptureInfo(stream_of(stream), &status, &id)));
    if (status == cudaStreamCaptureStatusInvalidated) {
      return fail(ErrorCode::kInvalidArgument,
                  "stream: its graph capture was invalidated by an earlier call; end it first");
    }
    return status == cudaStreamCaptureStatusActive ? uint64_t{id} + 1 : 0;
  }

  Status check_alive() override {
    const Context::Entered entered(context_);
    return checked("device", context_.query(event_of(pulse_)));
  }

  Result<StreamHandle> create_stream() override {
    const Context::Entered entered(context_);
    cudaStream_t stream = nullptr;
    MOETAPE_TRY(checked("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return static_cast<StreamHandle>(stream);
  }
  void destroy_stream(StreamHandle stream) override {
    const Context::Entered entered(context_);
    ignored(cudaStreamDestroy(stream_of(stream)));
  }

  Status copy(void* to, const void* from, int64_t bytes, StreamHandle stream) override {
    const Context::Entered entered(context_);
    return checked(
        "copy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
  }
  Status launch(const CommitArgs& args, StreamHandle stream) override { return run("commit", args, stream); }
  Status launch(const CaptureArgs& args, StreamHandle stream) override {
    return run("capture", args, stream);
  }
  Status launch(const PoisonArgs& args, StreamHandle stream) override { return run("poison", args, stream); }

  Result<EventHandle> create_event() override {
    const Context::Entered entered(context_);
    cudaEvent_t event = nullptr;
    MOETAPE_TRY(checked("event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return static_cast<EventHandle>(event);
  }
  void destroy_event(EventHandle event) override {
    const Context::Entered entered(context_);
    ignored(cudaEventDestroy(event_of(event)));
  }
  Status record(EventHandle event, StreamHandle stream) override {
    const Context::Entered entered(context_);
    return checked("event", cudaEventRecord(event_of(event), stream_of(stream)));
  }
  Status wait(StreamHandle stream, EventHandle event) override {
    const Context::Entered entered(context_);
    return checked("event", cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  Result<bool> is_done(EventHandle event) override {
    const Context::Entered entered(context_);
    const cudaError_t error = context_.query(event_of(event));
    if (error == cudaErrorNotReady) return false;
    MOETAPE_TRY(checked("event", error));
    return true;
  }
  Status synchronize(EventHandle event) override {
    const Context::Entered entered(context_);
    return checked("event", cudaEventSynchronize(event_of(event)));
  }

 private:
  static Result<std::byte*> mapped_address(void* host) {
    void* device = nullptr;
    MOETAPE_TRY(checked("mapping host memory", cudaHostGetDevicePointer(&device, host, 0)));
    return static_cast<std::byte*>(device);
  }
  template <class Args>
  Status run(const char* what, const Args& args, StreamHandle stream) {
    const Context::Entered entered(context_);
    return checked(what, launch_kernel(args, stream_of(stream)));
  }

  const int index_;
  const int num_multiprocessors_;
  const Context context_;
  EventHandle pulse_ = nullptr;  // never recorded: a query of it tells of the context alone
};

}  // namespace

Result<std::shared_ptr<Device>> open_device(int index) {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fail(ErrorCode::kUnsupported, "cuda:{}: no CUDA driver that this build can use: {} ({})", index,
                cudaGetErrorString(error), cudaGetErrorName(error));
  }
  if (index < 0 || index >= num_devices) {
    return fail(ErrorCode::kUnsupported, "cuda:{}: expected a device from 0 to {}", index, num_devices - 1);
  }
  int num_multiprocessors = 0;
  MOETAPE_TRY(
      checked("device", cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, index)));
  MOETAPE_ASSIGN(Context context, Context::open(index));
  auto device = std::make_shared<CudaDevice>(index, num_multiprocessors, std::move(context));
  MOETAPE_TRY(device->create());
  return device;
}

}  // namespace moetape::inline v0::cuda
