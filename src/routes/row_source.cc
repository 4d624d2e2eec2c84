#include "moetape/row_source.h"

#include <cstring>

#include "base/fail.h"

namespace moetape::inline v0 {

Status RoutesSource::pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) {
  const int64_t num_rows = routes_.num_rows();
  if (first < 0 || count < 0 || first > num_rows || count > num_rows - first) {
    return fail(ErrorCode::kOutOfRange, "pull: expected rows within [0, {}), got {} from row {}", num_rows,
                count, first);
  }
  if (count == 0) return {};
  const auto row_bytes = static_cast<size_t>(spec().row_bytes());
  const auto num = static_cast<size_t>(count);
  std::memcpy(rows, routes_.ids().data() + static_cast<size_t>(first) * row_bytes, num * row_bytes);
  std::memcpy(reasons, routes_.reasons().data() + first, num);
  return {};
}

}  // namespace moetape::inline v0
