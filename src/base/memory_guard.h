// Turns the standard library's "no memory" into an error. For calls whose containers grow with outside
// numbers.
#pragma once

#include <new>
#include <stdexcept>
#include <string_view>

#include "base/fail.h"

namespace moetape::inline v0 {

// Runs f, which returns a Result or Status; kOutOfMemory names `what`.
template <class F>
auto guard_memory(std::string_view what, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return fail(ErrorCode::kOutOfMemory, "{}: the system has no memory for it", what);
}

}  // namespace moetape::inline v0
