// Slots: a view of the places of some tokens in the engine's KV space, by index or by block. Never owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moetape/array.h"

namespace moetape::inline v0 {

class Slots {
 public:
  Slots() = default;
  Slots(std::span<const int64_t> slots) : Slots(slots.data(), true, slots.size()) {}
  Slots(std::span<const int32_t> slots) : Slots(slots.data(), false, slots.size()) {}
  // Tokens [0, num_tokens) of a sequence whose t-th token stands at block_ids[t / block_size] * block_size +
  // t % block_size. A block id below 0 gives slots of -1; tokens behind the last block, and all tokens where
  // block_size is below 1, have slots that no store holds.
  static Slots blocks(std::span<const int32_t> block_ids, int64_t block_size, int64_t num_tokens) {
    return Slots(block_ids).in_blocks(block_size, num_tokens);
  }
  static Slots blocks(std::span<const int64_t> block_ids, int64_t block_size, int64_t num_tokens) {
    return Slots(block_ids).in_blocks(block_size, num_tokens);
  }

  int64_t size() const { return size_; }

  // Writes slots [first, first + count) to out.
  void copy(int64_t first, int64_t count, int64_t* out) const;

 private:
  Slots(const void* data, bool wide, size_t size)
      : data_(data), wide_(wide), num_elements_(static_cast<int64_t>(size)), size_(num_elements_) {}
  Slots in_blocks(int64_t block_size, int64_t num_tokens) const {
    Slots slots = *this;
    slots.in_blocks_ = true;
    slots.block_size_ = block_size;
    slots.size_ = num_tokens < 0 ? 0 : num_tokens;
    return slots;
  }
  int64_t element(int64_t index) const {
    return wide_ ? static_cast<const int64_t*>(data_)[index]
                 : int64_t{static_cast<const int32_t*>(data_)[index]};
  }

  const void* data_ = nullptr;
  bool wide_ = true;
  int64_t num_elements_ = 0;
  bool in_blocks_ = false;
  int64_t block_size_ = 0;
  int64_t size_ = 0;  // tokens
};

// Slots by index in the memory of a device, one a token.
struct DeviceSlots {
  const void* data = nullptr;
  IntType type = IntType::kInt64;  // or kInt32
  int64_t size = 0;
};

}  // namespace moetape::inline v0
