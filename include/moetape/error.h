// Errors: one list of codes, one table, one message that names the thing, what was expected and what came.
//
// Every function that meets data from outside returns Result<T>; the library never throws, prints, aborts
// or exits. Error is a value: copy it, compare its code, show its message. In Python each code is one
// exception below moetape.Error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "moetape/detail/expected.hpp"

namespace moetape::inline v0 {

enum class ErrorCode : uint8_t {
  kInvalidArgument,  // a value that no call of this kind takes
  kWrongType,        // an element type that is not taken here
  kWrongShape,       // dimensions or counts that do not fit together
  kOutOfRange,       // an index, slot, layer or position outside its range
  kCapacity,         // more rows than a fixed buffer holds
  kMemoryLimit,      // the size asked for is above the limit given
  kOutOfMemory,      // the system gave no memory
  kNotCaptured,      // layers that nobody captured in a step
  kAlreadyCaptured,  // rows captured twice in one step
  kStepOrder,        // a step or version that is not allowed now
  kSpecMismatch,     // routes of another spec
  kConflict,         // two records of one row that differ, two files of one name
  kMissingRows,      // missing rows where the receiver cannot say "missing"
  kCorruptData,      // bytes that are not what they claim to be
  kUnsupported,      // something that moetape does not do, by name
  kTimeout,          // something awaited did not happen in time
  kClosed,           // the object was closed
  kIo,               // the system refused to open, read, write or name a file
  kDeviceFailed,     // a device, or its driver, failed
};

inline constexpr int kNumErrorCodes = static_cast<int>(ErrorCode::kDeviceFailed) + 1;

// One row of the table of codes.
struct ErrorCodeInfo {
  ErrorCode code;
  std::string_view name;            // "out_of_range"
  std::string_view python_name;     // "OutOfRangeError"
  std::string_view python_builtin;  // "IndexError", or empty: what the exception is besides moetape.Error
};

std::span<const ErrorCodeInfo> error_codes();  // in the order of the enum
std::string_view error_name(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
};

template <class T>
using Result = detail::expected<T, Error>;
using Status = Result<void>;
using Failure = detail::unexpected<Error>;

}  // namespace moetape::inline v0
