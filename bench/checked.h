// What every benchmark asks before it times anything: a wrong result ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "moetape/error.h"

namespace moetape::inline v0 {

inline void require(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong result: %s\n", what);
  std::abort();
}

template <class T>
T value_of(Result<T> result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  require(result.has_value(), "an error");
  return *std::move(result);
}

}  // namespace moetape::inline v0
