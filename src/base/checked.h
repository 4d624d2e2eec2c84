// Sums and products that know when they overflow. For sizes made from outside numbers.
#pragma once

#include <cstdint>
#include <optional>

namespace moetape::inline v0 {

inline std::optional<int64_t> checked_multiply(int64_t a, int64_t b) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace moetape::inline v0
