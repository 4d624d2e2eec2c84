#include "moetape/error.h"

#include <array>

namespace moetape::inline v0 {
namespace {

using enum ErrorCode;

constexpr std::array<ErrorCodeInfo, kNumErrorCodes> kTable = {{
    {kInvalidArgument, "invalid_argument", "InvalidArgumentError", "ValueError"},
    {kWrongType, "wrong_type", "WrongTypeError", "TypeError"},
    {kWrongShape, "wrong_shape", "WrongShapeError", "ValueError"},
    {kOutOfRange, "out_of_range", "OutOfRangeError", "IndexError"},
    {kCapacity, "capacity", "CapacityError", "ValueError"},
    {kMemoryLimit, "memory_limit", "MemoryLimitError", "MemoryError"},
    {kOutOfMemory, "out_of_memory", "OutOfMemoryError", "MemoryError"},
    {kNotCaptured, "not_captured", "NotCapturedError", ""},
    {kAlreadyCaptured, "already_captured", "AlreadyCapturedError", ""},
    {kStepOrder, "step_order", "StepOrderError", "ValueError"},
    {kSpecMismatch, "spec_mismatch", "SpecMismatchError", "ValueError"},
    {kConflict, "conflict", "ConflictError", "ValueError"},
    {kMissingRows, "missing_rows", "MissingRowsError", "ValueError"},
    {kCorruptData, "corrupt_data", "CorruptDataError", "ValueError"},
    {kUnsupported, "unsupported", "UnsupportedError", ""},
    {kTimeout, "timeout", "TimeoutError", "TimeoutError"},
    {kClosed, "closed", "ClosedError", "ValueError"},
    {kIo, "io", "IoError", "OSError"},
    {kDeviceFailed, "device_failed", "DeviceFailedError", "RuntimeError"},
}};

}  // namespace

std::span<const ErrorCodeInfo> error_codes() { return kTable; }

std::string_view error_name(ErrorCode code) { return kTable[static_cast<size_t>(code)].name; }

}  // namespace moetape::inline v0
