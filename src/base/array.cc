#include "moetape/array.h"

#include <array>

namespace moetape::inline v0 {

std::string_view int_type_name(IntType type) {
  constexpr std::array<std::string_view, 8> kNames = {"int8",  "uint8",  "int16", "uint16",
                                                      "int32", "uint32", "int64", "uint64"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace moetape::inline v0
