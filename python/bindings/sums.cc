#include "sums.h"

#include <utility>

namespace moetape::bindings {

Records::Records(RecordsArg records, const char* name) {
  if (const Routes* one = ObjectArg<Routes>{{records.object}}.get_if()) {
    one_ = *one;
  } else {
    items_.emplace(records.object, name, "Routes or an iterable of them");
  }
}

std::optional<Routes> Records::next() {
  if (!items_) return std::exchange(one_, std::nullopt);
  const nb::object item = items_->next();
  if (!item.is_valid()) return std::nullopt;
  return ObjectArg<Routes>{{item}}.get(items_->item_name().c_str());
}

nb::dict reason_counts(const std::array<int64_t, kNumReasons>& counts) {
  nb::dict result;
  for (int i = 1; i < kNumReasons; ++i) {
    const std::string_view name = reason_name(static_cast<Reason>(i));
    const int64_t count = counts[static_cast<size_t>(i)];
    if (count > 0) result[nb::str(name.data(), name.size())] = count;
  }
  return result;
}

}  // namespace moetape::bindings
