// What stands in the place of CUDA where the build has none.
#include "base/fail.h"
#include "record/cuda/device.h"

namespace moetape::inline v0::cuda {

Result<std::shared_ptr<Device>> open_device(int index) {
  return fail(ErrorCode::kUnsupported, "cuda:{}: this build has no CUDA (configure with -DMOETAPE_CUDA=ON)",
              index);
}

}  // namespace moetape::inline v0::cuda
