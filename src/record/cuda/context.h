// Context: the primary context of one device, and how a call enters it; for the files of this folder that see
// CUDA.
//
// The runtime's own way, cudaSetDevice and back, would make a context on device 0 in every thread that had
// none. The driver's stack of contexts leaves the thread as it was, and its functions leave alone the last
// error that the runtime keeps for the application. They are asked for at run time: no driver is linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "moetape/error.h"

namespace moetape::inline v0::cuda {

class Context {
 public:
  // Makes the context unless the process has it. Of a device that there is.
  static Result<Context> open(int index);
  Context(Context&& other) noexcept;
  Context& operator=(Context&&) = delete;
  ~Context();

  // A call in this context, which harms no capture that another thread has under way.
  class Entered {
   public:
    explicit Entered(const Context& context);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    const Context& context_;
    bool pushed_ = false;
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  };

  // cudaErrorNotReady while work before the event is under way. Where the context is dead, why.
  cudaError_t query(cudaEvent_t event) const;

 private:
  struct Functions {
    decltype(&cuDeviceGet) device_get = nullptr;
    decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
    decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
    decltype(&cuCtxGetCurrent) get_current = nullptr;
    decltype(&cuCtxPushCurrent) push = nullptr;
    decltype(&cuCtxPopCurrent) pop = nullptr;
    decltype(&cuEventQuery) event_query = nullptr;
  };
  Context(const Functions& functions, CUdevice device, CUcontext context)
      : functions_(functions), device_(device), context_(context) {}

  Functions functions_;
  CUdevice device_;
  CUcontext context_;
};

}  // namespace moetape::inline v0::cuda
