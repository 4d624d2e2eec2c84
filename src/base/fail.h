// fail(code, format, …): the one way in which the library makes an error.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "moetape/error.h"

namespace moetape::inline v0 {

template <class... Args>
[[nodiscard]] Failure fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Failure(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace moetape::inline v0

// Leaves the function with the error of a Status or Result, if it has one.
#define MOETAPE_TRY(expression)                                          \
  do {                                                                   \
    if (auto&& moetape_try_result = (expression); !moetape_try_result) { \
      return ::moetape::Failure(std::move(moetape_try_result).error());  \
    }                                                                    \
  } while (0)

#define MOETAPE_CONCAT_INNER(a, b) a##b
#define MOETAPE_CONCAT(a, b) MOETAPE_CONCAT_INNER(a, b)
#define MOETAPE_ASSIGN_INNER(result, target, expression)             \
  auto result = (expression);                                        \
  if (!result) return ::moetape::Failure(std::move(result).error()); \
  target = *std::move(result)

// MOETAPE_ASSIGN(auto rows, count_rows(x)): declares or assigns the value, or leaves with the error.
#define MOETAPE_ASSIGN(target, expression) \
  MOETAPE_ASSIGN_INNER(MOETAPE_CONCAT(moetape_result_, __LINE__), target, expression)
