// Views of other people's arrays: integers of any width, with strides, never owned.
#pragma once

#include <cstdint>
#include <string_view>

namespace moetape::inline v0 {

enum class IntType : uint8_t { kInt8, kUint8, kInt16, kUint16, kInt32, kUint32, kInt64, kUint64 };

constexpr int int_type_bytes(IntType type) { return 1 << (static_cast<int>(type) / 2); }
constexpr bool int_type_signed(IntType type) { return static_cast<int>(type) % 2 == 0; }
std::string_view int_type_name(IntType type);  // "int32"

// A router's choice for some tokens: element (r, c) stands at data + (r * row_stride + c * column_stride)
// elements. The memory is only read, and only during the call that takes the view.
struct IdsView {
  const void* data = nullptr;
  IntType type = IntType::kInt64;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t row_stride = 0;     // in elements
  int64_t column_stride = 1;  // in elements
};

}  // namespace moetape::inline v0
