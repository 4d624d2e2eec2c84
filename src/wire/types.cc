#include "wire/types.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"

namespace moetape::inline v0::wire {
namespace {

int64_t largest(IntType type) {
  const int bits = 8 * int_type_bytes(type) - (int_type_signed(type) ? 1 : 0);
  return bits >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
}

}  // namespace

bool holds(IntType type, int64_t id) { return id <= largest(type); }

Result<IntType> first_type(const DialectInfo& info, int64_t num_experts) {
  for (const IntType type : info.types) {
    if (holds(type, num_experts - 1)) return type;
  }
  const IntType widest = std::ranges::max(info.types, {}, largest);
  return fail(ErrorCode::kUnsupported, "{}: num_experts: expected at most {}, which {} can count, got {}",
              info.name, largest(widest) + 1, int_type_name(widest), num_experts);
}

std::optional<IntType> type_from_name(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(IntType::kUint64); ++i) {
    if (name == int_type_name(static_cast<IntType>(i))) return static_cast<IntType>(i);
  }
  return std::nullopt;
}

std::string type_names(std::span<const IntType> types) {
  std::string names;
  for (size_t i = 0; i < types.size(); ++i) {
    names += i == 0 ? "" : i + 1 == types.size() ? " or " : ", ";
    names += int_type_name(types[i]);
  }
  return names;
}

}  // namespace moetape::inline v0::wire
