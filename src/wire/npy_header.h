// The header of NumPy's .npy files, version 1.0 (https://numpy.org/doc/stable/reference/generated/
// numpy.lib.format.html): magic, version, length, a Python dict of descr, fortran_order and shape.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "moetape/array.h"
#include "moetape/error.h"

namespace moetape::inline v0::wire {

// Bytes in front of the dict.
inline constexpr int64_t kNpyPrefixBytes = 10;

// What NumPy itself writes for a C-order array.
std::string npy_header(IntType type, std::array<int64_t, 3> shape);

// The length of the dict (`thing` begins messages), out of the first kNpyPrefixBytes bytes. kUnsupported for
// another version.
Result<int64_t> npy_dict_bytes(std::string_view thing, std::string_view prefix);

struct NpyDict {
  IntType type = IntType::kUint8;
  std::array<int64_t, 3> shape{};
};

// kCorruptData names the byte of the file; kWrongType for elements that are no little-endian integers,
// kUnsupported for Fortran order, kWrongShape for another number of dimensions.
Result<NpyDict> parse_npy_dict(std::string_view thing, std::string_view dict);

}  // namespace moetape::inline v0::wire
