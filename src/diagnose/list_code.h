// ListCode: numbers as sets of experts, and back.
//
// Number n is multiplied by a constant, so that neighbours lie far apart and all experts are used, and the
// product is the rank of the set among all sets in colexicographic order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0 {

class ListCode {
 public:
  static Result<ListCode> create(int32_t num_experts, int32_t top_k);

  // Numbers are below this: the number of sets, at most 2^62.
  uint64_t capacity() const { return capacity_; }

  // top_k different ids, in an order that the number says.
  void encode(uint64_t number, std::span<int32_t> ids) const;
  // In any order; nothing for ids that no number has. `scratch` has top_k places.
  std::optional<uint64_t> decode(std::span<const int32_t> ids, std::span<int32_t> scratch) const;

 private:
  __extension__ using Wide = unsigned __int128;

  ListCode(int32_t num_experts, int32_t top_k);
  // Sets of `size` out of `count`, at most 2^126.
  Wide num_sets(int32_t count, int32_t size) const { return num_sets_[index(count, size)]; }
  size_t index(int32_t count, int32_t size) const {
    return static_cast<size_t>(size) * (static_cast<size_t>(num_experts_) + 1) + static_cast<size_t>(count);
  }
  uint64_t times(uint64_t number, uint64_t factor) const {
    return static_cast<uint64_t>(Wide{number} * factor % capacity_);
  }

  int32_t num_experts_;
  int32_t top_k_;
  std::vector<Wide> num_sets_;
  uint64_t capacity_ = 1;
  Wide stride_ = 1;  // of ranks in use
  uint64_t factor_ = 1;
  uint64_t inverse_ = 1;
};

}  // namespace moetape::inline v0
