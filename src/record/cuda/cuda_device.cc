// The Device that is one, by the CUDA runtime. The runtime is linked in and finds the driver when it is first
// asked, so that a program without one runs.
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "base/fail.h"
#include "record/cuda/device.h"
#include "record/cuda/kernels.h"

namespace moetape::inline v0::cuda {
namespace {

Failure device_error(const char* what, cudaError_t error) {
  static_cast<void>(cudaGetLastError());  // what can be cleared shall not meet the next call
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceFailed;
  return fail(code, "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Status checked(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return device_error(what, error);
}

// The thread's current device, for as long as this lives.
class Current {
 public:
  explicit Current(int index) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == index) return;
    changed_ = cudaSetDevice(index) == cudaSuccess;
  }
  ~Current() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// Looking at an event must not break a capture that another thread of the process has under way.
class Relaxed {
 public:
  Relaxed() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~Relaxed() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(EventHandle event) { return static_cast<cudaEvent_t>(event); }

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
    static_cast<void>(cudaHostUnregister(memory));
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
  CudaDevice(int index, int num_multiprocessors) : index_(index), num_multiprocessors_(num_multiprocessors) {}

  int index() const override { return index_; }
  int num_multiprocessors() const override { return num_multiprocessors_; }

  Result<std::byte*> allocate(int64_t bytes) override {
    const Current current(index_);
    void* memory = nullptr;
    MOETAPE_TRY(checked("device memory", cudaMalloc(&memory, static_cast<size_t>(bytes))));
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) override {
    const Current current(index_);
    static_cast<void>(cudaFree(memory));
  }

  Result<MappedMemory> allocate_pinned(int64_t bytes) override {
    const Current current(index_);
    void* host = nullptr;
    MOETAPE_TRY(checked("pinned memory", cudaHostAlloc(&host, static_cast<size_t>(bytes),
                                                       cudaHostAllocMapped | cudaHostAllocPortable)));
    auto device = mapped_address(host);
    if (!device) free_pinned(static_cast<std::byte*>(host));
    MOETAPE_TRY(device);
    return MappedMemory{static_cast<std::byte*>(host), *device};
  }
  void free_pinned(std::byte* host) override { static_cast<void>(cudaFreeHost(host)); }

  Result<std::byte*> map_host(std::byte* memory, int64_t bytes) override {
    const Current current(index_);
    MOETAPE_TRY(Pinned::instance().add(memory, bytes));
    auto device = mapped_address(memory);
    if (!device) Pinned::instance().remove(memory);
    return device;
  }
  void unmap_host(std::byte* memory) override { Pinned::instance().remove(memory); }

  Status check_memory(const void* data, int64_t bytes, const char* name) override {
    const auto* first = static_cast<const std::byte*>(data);
    for (const std::byte* at : {first, first + bytes - 1}) {
      cudaPointerAttributes attributes = {};
      const cudaError_t error = cudaPointerGetAttributes(&attributes, at);
      const bool on_device =
          attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
      if (error == cudaSuccess && on_device && attributes.device == index_) continue;
      if (error != cudaSuccess) return device_error(name, error);
      return fail(ErrorCode::kInvalidArgument, "{}: expected memory of cuda:{}, got {}", name, index_,
                  on_device ? fmt::format("memory of cuda:{}", attributes.device)
                  : attributes.type == cudaMemoryTypeHost ? "pinned host memory"
                                                          : "host memory");
    }
    return {};
  }

  Status check_stream(StreamHandle stream) override {
    if (stream_of(stream) == nullptr || stream_of(stream) == cudaStreamLegacy ||
        stream_of(stream) == cudaStreamPerThread)
      return {};
    int device = -1;
    MOETAPE_TRY(checked("stream", cudaStreamGetDevice(stream_of(stream), &device)));
    if (device == index_) return {};
    return fail(ErrorCode::kInvalidArgument, "stream: expected one of cuda:{}, got one of cuda:{}", index_,
                device);
  }

  Result<bool> is_capturing(StreamHandle stream) override {
    const Current current(index_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MOETAPE_TRY(checked("stream", cudaStreamIsCapturing(stream_of(stream), &status)));
    return status == cudaStreamCaptureStatusActive;
  }

  Status copy(void* to, const void* from, int64_t bytes, StreamHandle stream) override {
    const Current current(index_);
    return checked(
        "copy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
  }
  Status launch(const CommitArgs& args, StreamHandle stream) override { return run("commit", args, stream); }
  Status launch(const CaptureArgs& args, StreamHandle stream) override {
    return run("capture", args, stream);
  }
  Status launch(const PoisonArgs& args, StreamHandle stream) override { return run("poison", args, stream); }

  Result<EventHandle> create_event() override {
    const Current current(index_);
    cudaEvent_t event = nullptr;
    MOETAPE_TRY(checked("event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return static_cast<EventHandle>(event);
  }
  void destroy_event(EventHandle event) override { static_cast<void>(cudaEventDestroy(event_of(event))); }
  Status record(EventHandle event, StreamHandle stream) override {
    const Current current(index_);
    return checked("event", cudaEventRecord(event_of(event), stream_of(stream)));
  }
  Status wait(StreamHandle stream, EventHandle event) override {
    const Current current(index_);
    return checked("event", cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  Result<bool> is_done(EventHandle event) override {
    const Relaxed relaxed;
    const cudaError_t error = cudaEventQuery(event_of(event));
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    MOETAPE_TRY(checked("event", error));
    return true;
  }
  Status synchronize(EventHandle event) override {
    const Relaxed relaxed;
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
    const Current current(index_);
    return checked(what, launch_kernel(args, stream_of(stream)));
  }

  const int index_;
  const int num_multiprocessors_;
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
  return std::make_shared<CudaDevice>(index, num_multiprocessors);
}

}  // namespace moetape::inline v0::cuda
