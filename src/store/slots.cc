#include "moetape/slots.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace moetape::inline v0 {

void Slots::copy(int64_t first, int64_t count, int64_t* out) const {
  constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();
  if (count == 0) return;  // null is no address for memcpy, not even of nothing
  if (!in_blocks_) {
    if (wide_) {
      std::memcpy(out, static_cast<const int64_t*>(data_) + first, static_cast<size_t>(count) * 8);
    } else {
      std::copy_n(static_cast<const int32_t*>(data_) + first, count, out);
    }
    return;
  }
  if (block_size_ < 1) {
    std::fill_n(out, count, kNowhere);
    return;
  }
  int64_t done = 0;
  while (done < count) {
    const int64_t block = (first + done) / block_size_;
    const int64_t within = (first + done) % block_size_;
    const int64_t run = std::min(count - done, block_size_ - within);
    const int64_t id = block < num_elements_ ? element(block) : kNowhere;
    for (int64_t i = 0; i < run; ++i) {
      int64_t slot;
      const bool overflow =
          __builtin_mul_overflow(id, block_size_, &slot) || __builtin_add_overflow(slot, within + i, &slot);
      out[done + i] = id < 0 ? -1 : overflow ? kNowhere : slot;
    }
    done += run;
  }
}

}  // namespace moetape::inline v0
