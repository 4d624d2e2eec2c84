// Rows of ids from outside, checked and narrowed to what Routes keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "moetape/array.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

struct BadId {
  int64_t row;  // of those given
  int32_t layer;
  int64_t value;
  bool repeated;  // else out of range
};

// Rows [num_rows, layers, top_k] in C order, to `out` likewise, id_bytes() each. `faults` is scratch, one
// byte a row and layer. Returns the first id that cannot be; `out` is then of no use.
std::optional<BadId> narrow_rows(const RouteSpec& spec, const void* ids, IntType type, int64_t num_rows,
                                 std::byte* out, uint8_t* faults);

}  // namespace moetape::inline v0
