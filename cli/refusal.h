// How a command ends early: one line for standard error, and a code for the shell.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "moetape/error.h"

namespace moetape::cli {

enum ExitCode : int {
  kFine = 0,
  kCheckFailed = 1,
  kRefused = 2,  // wrong use, or input that is not what it must be
};

// Leaves the command with kRefused.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal(fmt::format(format, std::forward<Args>(args)...));
}

// The value of a result, or the end of the command with its error. `place` begins the message where the
// library does not know it, such as the name of the file that was read.
template <class T>
T need(Result<T> result, const std::string& place = {}) {
  if (!result) throw Refusal((place.empty() ? place : place + ": ") + result.error().message);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace moetape::cli
