// Comparing lists of ids, as lists and as sets. Pure; any alignment; every instruction set gives the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moetape::inline v0::simd {

struct ListsJob {
  const std::byte* a = nullptr;  // num_lists lists of top_k ids each, close together
  const std::byte* b = nullptr;  // likewise; it may overlap with a
  int id_bytes = 1;              // 1 or 2
  int top_k = 1;                 // 1 .. 65,536
  int64_t num_lists = 0;
  uint32_t* shared = nullptr;   // [num_lists] ids that stand in both lists, each as often as in both
  uint32_t* unequal = nullptr;  // [num_lists] 0, or 1 where the lists differ in ids or in their order
};

void compare_lists(const ListsJob& job);

}  // namespace moetape::inline v0::simd
