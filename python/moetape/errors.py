"""The exceptions of moetape: one per kind of error, all below Error.

Each is besides Error the exception that Python has for the notion (ValueError, TypeError, IndexError, …), and
`code` names its kind. The message names the thing, what was expected and what came.
"""

from moetape._moetape import (
    AlreadyCapturedError,
    CapacityError,
    ClosedError,
    ConflictError,
    CorruptDataError,
    DeviceFailedError,
    Error,
    InvalidArgumentError,
    IoError,
    MemoryLimitError,
    MissingRowsError,
    NotCapturedError,
    OutOfMemoryError,
    OutOfRangeError,
    SpecMismatchError,
    StepOrderError,
    TimeoutError,
    UnsupportedError,
    WrongShapeError,
    WrongTypeError,
)

__all__ = [
    "AlreadyCapturedError",
    "CapacityError",
    "ClosedError",
    "ConflictError",
    "CorruptDataError",
    "DeviceFailedError",
    "Error",
    "InvalidArgumentError",
    "IoError",
    "MemoryLimitError",
    "MissingRowsError",
    "NotCapturedError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "SpecMismatchError",
    "StepOrderError",
    "TimeoutError",
    "UnsupportedError",
    "WrongShapeError",
    "WrongTypeError",
]
