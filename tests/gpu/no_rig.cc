// The program in a build without CUDA: the dry run only.
#include <stdexcept>

#include "tests/gpu/rig.h"

namespace moetape::inline v0::cuda {

std::unique_ptr<Rig> make_cuda_rig() { throw std::runtime_error(open_device(0).error().message); }

}  // namespace moetape::inline v0::cuda
