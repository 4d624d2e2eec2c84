#include "sequences.h"

namespace moetape::bindings {

Items::Items(nb::handle iterable, const char* name, std::string_view expected)
    : name_(name), iterator_(nb::steal(PyObject_GetIter(iterable.ptr()))) {
  if (iterator_.is_valid()) return;
  PyErr_Clear();
  raise_wrong_type(name, expected, iterable);
}

nb::object Items::next() {
  nb::object item = nb::steal(PyIter_Next(iterator_.ptr()));
  if (!item.is_valid() && PyErr_Occurred()) throw nb::python_error();
  if (item.is_valid()) ++count_;
  return item;
}

std::string Items::item_name() const { return fmt::format("{}[{}]", name_, count_ - 1); }

std::vector<Routes> RoutesListArg::get(const char* name) const {
  std::vector<Routes> result;
  Items items(object, name, "a list of Routes");
  while (const nb::object item = items.next()) {
    const std::string item_name = items.item_name();
    result.push_back(ObjectArg<Routes>{{item}}.get(item_name.c_str()));
  }
  return result;
}

std::vector<RowSpan> RowSpansArg::get(const char* name) const {
  std::vector<RowSpan> result;
  Items items(object, name, "a list of (sequence, start, end)");
  while (const nb::object item = items.next()) {
    const std::string item_name = items.item_name();
    if (!PyTuple_Check(item.ptr()) || nb::len(item) != 3) {
      raise_wrong_type(item_name.c_str(), "(sequence, start, end)", item);
    }
    int64_t numbers[3];
    for (size_t i = 0; i < 3; ++i) {
      const nb::object number = item[i];
      numbers[i] = IntArg{{number}}.get(item_name.c_str());
    }
    result.push_back({numbers[0], numbers[1], numbers[2]});
  }
  return result;
}

std::vector<Capture> CapturesArg::get(const char* name) const {
  std::vector<Capture> result;
  Items items(object, name, "a list of (Routes, sampled_from)");
  while (const nb::object item = items.next()) {
    const std::string item_name = items.item_name();
    if (!PyTuple_Check(item.ptr()) || nb::len(item) != 2) {
      raise_wrong_type(item_name.c_str(), "(Routes, sampled_from)", item);
    }
    const nb::object routes = item[0];
    const nb::object sampled_from = item[1];
    result.push_back({ObjectArg<Routes>{{routes}}.get(item_name.c_str()),
                      IntArg{{sampled_from}}.get((item_name + ".sampled_from").c_str())});
  }
  return result;
}

}  // namespace moetape::bindings
