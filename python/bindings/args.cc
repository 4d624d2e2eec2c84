#include "args.h"

#include <algorithm>
#include <cmath>

namespace moetape::bindings {
namespace {

// Nothing when the object is no integer at all.
std::optional<int64_t> to_int64(nb::handle object, const char* name) {
  if (PyBool_Check(object.ptr())) return std::nullopt;
  nb::object index = nb::borrow(object);
  if (!PyLong_Check(object.ptr())) {
    if (!PyIndex_Check(object.ptr())) return std::nullopt;
    index = nb::steal(PyNumber_Index(object.ptr()));
    if (!index.is_valid()) {
      // Arrays have __index__ and refuse unless they hold one integer.
      PyErr_Clear();
      return std::nullopt;
    }
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    raise(ErrorCode::kOutOfRange, "{}: expected an integer of 64 bits, got {}", name,
          overflow < 0 ? "one below them" : "one above them");
  }
  return value;
}

}  // namespace

std::string python_type_name(nb::handle object) {
  return nb::cast<std::string>(object.type().attr("__name__"));
}

void raise_wrong_type(const char* name, std::string_view expected, nb::handle found) {
  raise(ErrorCode::kWrongType, "{}: expected {}, got {}", name, expected, python_type_name(found));
}

int64_t IntArg::get(const char* name) const {
  const std::optional<int64_t> value = to_int64(object, name);
  if (!value) raise_wrong_type(name, "int", object);
  return *value;
}

int64_t IntArg::get(const char* name, int64_t first, int64_t last) const {
  const int64_t value = get(name);
  if (value < first || value > last) {
    raise(ErrorCode::kOutOfRange, "{}: expected {} to {}, got {}", name, first, last, value);
  }
  return value;
}

std::optional<int64_t> OptionalIntArg::get(const char* name) const {
  if (object.is_none()) return std::nullopt;
  const std::optional<int64_t> value = to_int64(object, name);
  if (!value) raise_wrong_type(name, "int or None", object);
  return value;
}

int64_t OptionalIntArg::limit(const char* name) const {
  const std::optional<int64_t> value = get(name);
  if (value && *value < 1) {
    raise(ErrorCode::kInvalidArgument, "{}: expected None or at least 1, got {}", name, *value);
  }
  return value.value_or(0);
}

std::chrono::milliseconds SecondsArg::get(const char* name) const {
  constexpr double kYear = 365.0 * 24 * 3600;
  if (!PyFloat_Check(object.ptr()) && !PyLong_Check(object.ptr())) raise_wrong_type(name, "float", object);
  double seconds = PyFloat_AsDouble(object.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    seconds = kYear;
  }
  if (!(seconds >= 0)) {
    raise(ErrorCode::kInvalidArgument, "{}: expected 0 or more seconds, got {}", name, seconds);
  }
  return std::chrono::milliseconds(std::llround(std::min(seconds, kYear) * 1000));
}

bool BoolArg::get(const char* name) const {
  if (!PyBool_Check(object.ptr())) raise_wrong_type(name, "bool", object);
  return object.ptr() == Py_True;
}

std::string_view StrArg::get(const char* name) const {
  if (!PyUnicode_Check(object.ptr())) raise_wrong_type(name, "str", object);
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    raise(ErrorCode::kInvalidArgument, "{}: expected a str that UTF-8 can hold, got a lone surrogate", name);
  }
  return {text, static_cast<size_t>(size)};
}

std::string PathArg::get(const char* name) const {
  const nb::object path = nb::steal(PyOS_FSPath(object.ptr()));
  if (!path.is_valid()) PyErr_Clear();
  if (!path.is_valid() || !PyUnicode_Check(path.ptr())) {
    raise_wrong_type(name, "str or os.PathLike", object);
  }
  return std::string(StrArg{{path}}.get(name));
}

std::optional<std::string_view> OptionalStrArg::get(const char* name) const {
  if (object.is_none()) return std::nullopt;
  if (!PyUnicode_Check(object.ptr())) raise_wrong_type(name, "str or None", object);
  return StrArg{{object}}.get(name);
}

}  // namespace moetape::bindings
