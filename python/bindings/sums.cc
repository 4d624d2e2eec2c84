#include "sums.h"

#include <utility>

namespace moetape::bindings {

Records::Records(RecordsArg records, const char* name) : name_(name) {
  if (const Routes* one = ObjectArg<Routes>{{records.object}}.get_if()) {
    one_ = *one;
    return;
  }
  left_ = nb::steal(PyObject_GetIter(records.object.ptr()));
  if (left_.is_valid()) return;
  PyErr_Clear();
  raise_wrong_type(name, "Routes or an iterable of them", records.object);
}

std::optional<Routes> Records::next() {
  if (!left_.is_valid()) return std::exchange(one_, std::nullopt);
  const nb::object item = nb::steal(PyIter_Next(left_.ptr()));
  if (!item.is_valid()) {
    if (PyErr_Occurred()) throw nb::python_error();
    return std::nullopt;
  }
  const std::string item_name = fmt::format("{}[{}]", name_, index_++);
  return ObjectArg<Routes>{{item}}.get(item_name.c_str());
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
