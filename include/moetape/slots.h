// Slots: a view of the places of some tokens in the engine's KV space, by index or by block. Never owns.
#pragma once

#include <cstdint>
#include <span>

namespace moetape::inline v0 {

class Slots {
 public:
  Slots() = default;
  Slots(std::span<const int64_t> slots) : data_(slots.data()), size_(static_cast<int64_t>(slots.size())) {}
  Slots(std::span<const int32_t> slots)
      : data_(slots.data()), wide_(false), size_(static_cast<int64_t>(slots.size())) {}
  // Tokens [0, num_tokens) of a sequence whose t-th token stands at block_ids[t / block_size] * block_size +
  // t % block_size. There must be enough blocks; a block id of -1 gives slots of -1.
  static Slots blocks(std::span<const int32_t> block_ids, int64_t block_size, int64_t num_tokens) {
    Slots slots(block_ids);
    slots.block_size_ = block_size;
    slots.size_ = num_tokens;
    return slots;
  }
  static Slots blocks(std::span<const int64_t> block_ids, int64_t block_size, int64_t num_tokens) {
    Slots slots(block_ids);
    slots.block_size_ = block_size;
    slots.size_ = num_tokens;
    return slots;
  }

  int64_t size() const { return size_; }

  // Writes slots [first, first + count) to out.
  void copy(int64_t first, int64_t count, int64_t* out) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = first + i;
      const int64_t index = block_size_ == 0 ? token : token / block_size_;
      const int64_t value = wide_ ? static_cast<const int64_t*>(data_)[index]
                                  : int64_t{static_cast<const int32_t*>(data_)[index]};
      out[i] = block_size_ == 0 || value < 0 ? value : value * block_size_ + token % block_size_;
    }
  }

 private:
  const void* data_ = nullptr;
  bool wide_ = true;
  int64_t block_size_ = 0;  // 0 = by index
  int64_t size_ = 0;
};

}  // namespace moetape::inline v0
