// Narrowing a router's choice to 1 or 2 bytes an id, checked before it is cut.
//
// Pure functions over the caller's memory, safe to call from any thread on different outputs. The fastest
// instructions of the machine are chosen at run time; every choice gives the same bytes and the same faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "moetape/array.h"

namespace moetape::inline v0::simd {

// What is wrong with a row; bits.
enum RowFault : uint8_t {
  kFaultNone = 0,
  kFaultNegative = 1,  // a routed id below 0
  kFaultTooLarge = 2,  // a routed id of num_experts or more
  kFaultRepeated = 4,  // an id that stands twice, where `distinct` is asked
  kFaultShared = 8,    // a shared column that holds a routed id (below num_experts)
};

// Bytes in which an id of this many experts is kept (1 up to 256, 2 up to 65,536).
constexpr int id_bytes(int64_t num_experts) { return num_experts <= 256 ? 1 : 2; }

struct NarrowJob {
  IdsView ids;             // top_k or top_k + shared_columns columns; any integer type, any strides
  int top_k = 0;           // at least 1
  int shared_columns = 0;  // behind the top_k ids; looked at only if `ids` has them, and never kept
  int num_experts = 0;     // 1 .. 65,536
  bool distinct = true;
  std::byte* out = nullptr;   // row r at out + r * out_stride, top_k * id_bytes(num_experts) bytes
  int64_t out_stride = 0;     // in bytes
  uint8_t* faults = nullptr;  // one byte a row, the row's faults are OR-ed into it
};

// The first column of the first faulty row: `fault` is one bit, `value` what stands there (the second of
// two equal ids for kFaultRepeated; a uint64 above the range of int64 is shown as the largest int64).
struct NarrowFault {
  int64_t row;
  int64_t value;
  uint8_t fault;
};

// Narrows all rows. A faulty row gets the faults of all its columns in `faults` and zero bytes in `out`;
// ids are compared for repetition only in rows that have no other fault. Returns the first offender.
std::optional<NarrowFault> narrow(const NarrowJob& job);

// The largest of `count` narrow ids; -1 for none.
int64_t largest_id(const std::byte* ids, int id_bytes, int64_t count);

}  // namespace moetape::inline v0::simd
