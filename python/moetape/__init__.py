"""moetape records which experts a Mixture-of-Experts model sent every token to, and replays them in training.

    spec = moetape.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)
    store = moetape.Store(spec, num_slots=1_000_000)
    recorder = moetape.Recorder(store, max_rows=8192)
    recorder.begin(); recorder.capture(layer, topk_ids); recorder.commit(slots, version=7)
    routes = store.read(slots)
    text = moetape.encode(routes, "sglang")
    moetape.save("run.tape", [routes]); tape = moetape.open("run.tape"); tape[0]

Importing moetape imports neither torch nor an engine; moetape.models, moetape.engines, moetape.trainers,
moetape.synthetic and moetape.arrow are loaded when they are first used.
"""

from moetape import layout, replay, wire
from moetape._diagnose import diagnose
from moetape._lazy import loader
from moetape._moetape import (
    REASONS,
    Agreement,
    Balance,
    Blocks,
    Canary,
    CanaryReport,
    CanaryRun,
    Cause,
    CommitReport,
    Comparison,
    Diagnosis,
    Offender,
    Recorder,
    ReroutedRow,
    Routes,
    RouteSpec,
    RowMove,
    RowSource,
    Stats,
    Store,
    Tape,
    TapeEntry,
    TapeFault,
    TapeFile,
    TapeTensor,
    TapeWriter,
    Ticket,
    balance,
    blocks,
    canary,
    compare,
    decode,
    decode_rows,
    encode,
    merge_layers,
    merge_rows,
    merge_tapes,
    open,
    save,
    slice_tape,
    stats,
    stitch,
    tape_bytes,
)
from moetape._report import report
from moetape.errors import (
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
    "REASONS",
    "Agreement",
    "AlreadyCapturedError",
    "Balance",
    "Blocks",
    "Canary",
    "CanaryReport",
    "CanaryRun",
    "CapacityError",
    "Cause",
    "ClosedError",
    "CommitReport",
    "Comparison",
    "ConflictError",
    "CorruptDataError",
    "DeviceFailedError",
    "Diagnosis",
    "Error",
    "InvalidArgumentError",
    "IoError",
    "MemoryLimitError",
    "MissingRowsError",
    "NotCapturedError",
    "Offender",
    "OutOfMemoryError",
    "OutOfRangeError",
    "Recorder",
    "ReroutedRow",
    "RouteSpec",
    "Routes",
    "RowMove",
    "RowSource",
    "SpecMismatchError",
    "Stats",
    "StepOrderError",
    "Store",
    "Tape",
    "TapeEntry",
    "TapeFault",
    "TapeFile",
    "TapeTensor",
    "TapeWriter",
    "Ticket",
    "TimeoutError",
    "UnsupportedError",
    "WrongShapeError",
    "WrongTypeError",
    "balance",
    "blocks",
    "canary",
    "compare",
    "decode",
    "decode_rows",
    "diagnose",
    "encode",
    "layout",
    "merge_layers",
    "merge_rows",
    "merge_tapes",
    "open",
    "replay",
    "report",
    "save",
    "slice_tape",
    "stats",
    "stitch",
    "tape_bytes",
    "wire",
]

_LAZY = ("arrow", "engines", "models", "pieces", "ray", "synthetic", "trainers")

__getattr__ = loader(__name__, _LAZY)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
