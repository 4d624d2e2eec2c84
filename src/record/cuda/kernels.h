// Launching the kernels; for the files of this folder that see CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "record/cuda/step.h"

namespace moetape::inline v0::cuda {

// All of them into the current context. Their errors are returned and stay the runtime's last error too.
cudaError_t load_kernels();

cudaError_t launch_kernel(const CommitArgs& args, cudaStream_t stream);
cudaError_t launch_kernel(const CaptureArgs& args, cudaStream_t stream);
cudaError_t launch_kernel(const PoisonArgs& args, cudaStream_t stream);

}  // namespace moetape::inline v0::cuda
