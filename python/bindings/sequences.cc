#include "sequences.h"

namespace moetape::bindings {
namespace {

std::vector<nb::object> items(nb::handle iterable, const char* name, std::string_view expected) {
  const nb::object iterator = nb::steal(PyObject_GetIter(iterable.ptr()));
  if (!iterator.is_valid()) {
    PyErr_Clear();
    raise_wrong_type(name, expected, iterable);
  }
  std::vector<nb::object> result;
  while (PyObject* item = PyIter_Next(iterator.ptr())) result.push_back(nb::steal(item));
  if (PyErr_Occurred()) throw nb::python_error();
  return result;
}

}  // namespace

std::vector<Routes> RoutesListArg::get(const char* name) const {
  std::vector<Routes> result;
  for (const nb::object& item : items(object, name, "a list of Routes")) {
    const std::string item_name = fmt::format("{}[{}]", name, result.size());
    result.push_back(ObjectArg<Routes>{{item}}.get(item_name.c_str()));
  }
  return result;
}

std::vector<RowSpan> RowSpansArg::get(const char* name) const {
  std::vector<RowSpan> result;
  for (const nb::object& item : items(object, name, "a list of (sequence, start, end)")) {
    const std::string item_name = fmt::format("{}[{}]", name, result.size());
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
  for (const nb::object& item : items(object, name, "a list of (Routes, sampled_from)")) {
    const std::string item_name = fmt::format("{}[{}]", name, result.size());
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
