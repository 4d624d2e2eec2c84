// The kernels: thin shells over bodies.h.
#include "record/cuda/bodies.h"
#include "record/cuda/kernels.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr int kMaxThreadsPerBlock = kMaxWarpsPerBlock * kWarpLanes;

// One block after another reports itself done; the last one ends the step.
__device__ void end_block(const CommitArgs& args) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(&args.tally->blocks_done, 1) + 1 != static_cast<uint32_t>(args.geometry.num_blocks)) return;
  __threadfence_system();
  finish_step(args);
}

template <class LaneId, class Id>
__global__ void __launch_bounds__(kMaxThreadsPerBlock, 3) commit_kernel(const CommitArgs args) {
  if (!has_work(args)) return;
  extern __shared__ Word16 scratch_words[];
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  std::byte* scratch = reinterpret_cast<std::byte*>(scratch_words) + warp * args.shape.scratch_bytes();
  const int64_t warp_index = int64_t{blockIdx.x} * args.geometry.warps_per_block + warp;
  commit_warp<LaneId, Id>(Warp{}, args, warp_index, scratch);
  end_block(args);
}

template <class LaneId>
__global__ void capture_kernel(const CaptureArgs args) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t end = args.num_elements();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride)
    capture_element<LaneId>(args, i);
}

template <class LaneId>
__global__ void poison_kernel(const PoisonArgs args) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t end = args.num_elements();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride)
    poison_element<LaneId>(args, i);
}

constexpr unsigned kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

unsigned blocks_for(int64_t num_elements) {
  const int64_t blocks = (num_elements + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMostBlocks ? blocks : kMostBlocks);
}

// The error is the launch's own; the <<<>>> form leaves it where an older one of the application may stand.
template <class Args>
cudaError_t launch(void (*kernel)(Args), unsigned blocks, unsigned threads, size_t scratch, const Args& args,
                   cudaStream_t stream) {
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads), arguments,
                          scratch, stream);
}

}  // namespace

cudaError_t load_kernels() {
  const void* const kernels[] = {reinterpret_cast<const void*>(&commit_kernel<int32_t, uint16_t>),
                                 reinterpret_cast<const void*>(&commit_kernel<int16_t, uint16_t>),
                                 reinterpret_cast<const void*>(&commit_kernel<int16_t, uint8_t>),
                                 reinterpret_cast<const void*>(&capture_kernel<int32_t>),
                                 reinterpret_cast<const void*>(&capture_kernel<int16_t>),
                                 reinterpret_cast<const void*>(&poison_kernel<int32_t>),
                                 reinterpret_cast<const void*>(&poison_kernel<int16_t>)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

cudaError_t launch_kernel(const CommitArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.geometry.num_blocks);
  const auto threads = static_cast<unsigned>(args.geometry.warps_per_block * kWarpLanes);
  const auto scratch = static_cast<size_t>(args.geometry.warps_per_block * args.shape.scratch_bytes());
  if (args.shape.lane_id_bytes == 4)
    return launch(&commit_kernel<int32_t, uint16_t>, blocks, threads, scratch, args, stream);
  if (args.shape.id_bytes == 2)
    return launch(&commit_kernel<int16_t, uint16_t>, blocks, threads, scratch, args, stream);
  return launch(&commit_kernel<int16_t, uint8_t>, blocks, threads, scratch, args, stream);
}

cudaError_t launch_kernel(const CaptureArgs& args, cudaStream_t stream) {
  const unsigned blocks = blocks_for(args.num_elements());
  if (args.shape.lane_id_bytes == 4)
    return launch(&capture_kernel<int32_t>, blocks, kThreads, 0, args, stream);
  return launch(&capture_kernel<int16_t>, blocks, kThreads, 0, args, stream);
}

cudaError_t launch_kernel(const PoisonArgs& args, cudaStream_t stream) {
  const unsigned blocks = blocks_for(args.num_elements());
  if (args.shape.lane_id_bytes == 4)
    return launch(&poison_kernel<int32_t>, blocks, kThreads, 0, args, stream);
  return launch(&poison_kernel<int16_t>, blocks, kThreads, 0, args, stream);
}

}  // namespace moetape::inline v0::cuda
