// Errors at the Python border: one exception per error code, and the two ways to raise one.
// All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

#include "base/fail.h"
#include "moetape/error.h"

namespace moetape::bindings {

namespace nb = nanobind;

[[noreturn]] void raise(const Error& error);

// The error that an exception of ours came from.
Error error_of(const nb::python_error& exception);

template <class... Args>
[[noreturn]] void raise(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  raise(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace moetape::bindings
