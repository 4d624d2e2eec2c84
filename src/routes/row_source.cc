#include "moetape/row_source.h"

#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/fail.h"

namespace moetape::inline v0 {

Status RowSource::check_part(int64_t first, int64_t count) const {
  if (first >= 0 && count >= 0 && first <= num_rows() && count <= num_rows() - first) return {};
  const std::optional<int64_t> end = checked_add(first, count);
  return fail(ErrorCode::kOutOfRange, "rows: expected a part of [0, {}), got [{}, {})", num_rows(), first,
              end ? fmt::to_string(*end) : fmt::format("{} + {}", first, count));
}

Result<std::unique_ptr<RowSource>> RowSource::of_layers(std::span<const int32_t>) const { return nullptr; }

Status RoutesSource::pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) {
  MOETAPE_TRY(check_part(first, count));
  if (count == 0) return {};
  const auto row_bytes = static_cast<size_t>(spec().row_bytes());
  const auto num = static_cast<size_t>(count);
  std::memcpy(rows, routes_.ids().data() + static_cast<size_t>(first) * row_bytes, num * row_bytes);
  std::memcpy(reasons, routes_.reasons().data() + first, num);
  return {};
}

}  // namespace moetape::inline v0
