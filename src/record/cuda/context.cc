#include "record/cuda/context.h"

#include <utility>

#include "base/fail.h"

namespace moetape::inline v0::cuda {
namespace {

template <class Function>
bool find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  function = reinterpret_cast<Function>(found);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr;
}

}  // namespace

Result<Context> Context::open(int index) {
  Functions functions;
  const bool all =
      find("cuDeviceGet", functions.device_get) && find("cuDevicePrimaryCtxRetain", functions.retain) &&
      find("cuDevicePrimaryCtxRelease", functions.release) &&
      find("cuCtxGetCurrent", functions.get_current) && find("cuCtxPushCurrent", functions.push) &&
      find("cuCtxPopCurrent", functions.pop) && find("cuEventQuery", functions.event_query);
  if (!all) return fail(ErrorCode::kUnsupported, "cuda:{}: the driver is too old for this build", index);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUresult result = functions.device_get(&device, index);
  if (result == CUDA_SUCCESS) result = functions.retain(&context, device);
  if (result != CUDA_SUCCESS) {
    return fail(ErrorCode::kDeviceFailed, "cuda:{}: expected a context, got CUDA error {}", index,
                static_cast<int>(result));
  }
  return Context(functions, device, context);
}

Context::Context(Context&& other) noexcept
    : functions_(other.functions_),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)) {}

Context::~Context() {
  if (context_ != nullptr) static_cast<void>(functions_.release(device_));
}

Context::Entered::Entered(const Context& context) : context_(context) {
  CUcontext current = nullptr;
  const bool inside = context.functions_.get_current(&current) == CUDA_SUCCESS && current == context.context_;
  if (!inside) pushed_ = context.functions_.push(context.context_) == CUDA_SUCCESS;
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
}

Context::Entered::~Entered() {
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
  CUcontext popped = nullptr;
  if (pushed_) static_cast<void>(context_.functions_.pop(&popped));
}

// The runtime's numbers of errors are the driver's.
cudaError_t Context::query(cudaEvent_t event) const {
  return static_cast<cudaError_t>(functions_.event_query(event));
}

}  // namespace moetape::inline v0::cuda
