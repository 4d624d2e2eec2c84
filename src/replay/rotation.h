// Lists of distinct experts for rows that have no record, taken in turn.
#pragma once

#include <cstdint>
#include <cstring>

namespace moetape::inline v0 {

// Any number of lists in turn loads no expert twice more than another. Ids of a list are distinct where
// top_k <= num_experts.
class Rotation {
 public:
  Rotation(int32_t num_experts, int32_t top_k, int32_t first)
      : num_experts_(num_experts), top_k_(top_k), expert_(first) {}

  // Writes the next list, top_k ids of id_bytes (1 or 2).
  void next(std::byte* list, int id_bytes) {
    for (int32_t i = 0; i < top_k_; ++i, list += id_bytes) {
      const auto id = static_cast<uint16_t>(expert_);
      std::memcpy(list, &id, static_cast<size_t>(id_bytes));
      if (++expert_ == num_experts_) expert_ = 0;
    }
  }

 private:
  int32_t num_experts_;
  int32_t top_k_;
  int32_t expert_;
};

}  // namespace moetape::inline v0
