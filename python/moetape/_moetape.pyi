"""The core of moetape. Import the package moetape instead."""

import builtins
from collections.abc import Iterable, Iterator, Sequence
import os
import types
from typing import Any, ClassVar

import numpy
import numpy.typing


class Error(Exception):
    """
    Base of all of moetape's errors. `code` names the kind, such as "out_of_range".
    """

    code: str = 'error'

class InvalidArgumentError(Error, ValueError):
    """Error of kind "invalid_argument", and Python's ValueError."""

    code: str = 'invalid_argument'

class WrongTypeError(Error, TypeError):
    """Error of kind "wrong_type", and Python's TypeError."""

    code: str = 'wrong_type'

class WrongShapeError(Error, ValueError):
    """Error of kind "wrong_shape", and Python's ValueError."""

    code: str = 'wrong_shape'

class OutOfRangeError(Error, IndexError):
    """Error of kind "out_of_range", and Python's IndexError."""

    code: str = 'out_of_range'

class CapacityError(Error, ValueError):
    """Error of kind "capacity", and Python's ValueError."""

    code: str = 'capacity'

class MemoryLimitError(Error, MemoryError):
    """Error of kind "memory_limit", and Python's MemoryError."""

    code: str = 'memory_limit'

class OutOfMemoryError(Error, MemoryError):
    """Error of kind "out_of_memory", and Python's MemoryError."""

    code: str = 'out_of_memory'

class NotCapturedError(Error):
    """Error of kind "not_captured"."""

    code: str = 'not_captured'

class AlreadyCapturedError(Error):
    """Error of kind "already_captured"."""

    code: str = 'already_captured'

class StepOrderError(Error, ValueError):
    """Error of kind "step_order", and Python's ValueError."""

    code: str = 'step_order'

class SpecMismatchError(Error, ValueError):
    """Error of kind "spec_mismatch", and Python's ValueError."""

    code: str = 'spec_mismatch'

class ConflictError(Error, ValueError):
    """Error of kind "conflict", and Python's ValueError."""

    code: str = 'conflict'

class MissingRowsError(Error, ValueError):
    """Error of kind "missing_rows", and Python's ValueError."""

    code: str = 'missing_rows'

class CorruptDataError(Error, ValueError):
    """Error of kind "corrupt_data", and Python's ValueError."""

    code: str = 'corrupt_data'

class UnsupportedError(Error):
    """Error of kind "unsupported"."""

    code: str = 'unsupported'

class TimeoutError(Error, builtins.TimeoutError):
    """Error of kind "timeout", and Python's TimeoutError."""

    code: str = 'timeout'

class ClosedError(Error, ValueError):
    """Error of kind "closed", and Python's ValueError."""

    code: str = 'closed'

class IoError(Error, OSError):
    """Error of kind "io", and Python's OSError."""

    code: str = 'io'

class DeviceFailedError(Error, RuntimeError):
    """Error of kind "device_failed", and Python's RuntimeError."""

    code: str = 'device_failed'

class RouteSpec:
    """
    What is recorded of one stack of a model. An immutable value; any thread.

    layers: global 0-based indices of the MoE layers, ascending. num_experts: the largest over the layers, at most
    65,536; ids take 1 byte up to 256 experts, else 2. shared_columns: fused shared experts that ride behind the
    top_k ids in what routers give. distinct: whether the ids of a row must differ. num_layers: layers of the whole
    stack, default the last MoE layer + 1. excluded: MoE layers left out on purpose, with the reason.
    Raises InvalidArgumentError naming the field that does not fit.
    """

    def __init__(self, layers: numpy.typing.ArrayLike, top_k: int, num_experts: int, *, stack: str = 'target', shared_columns: int = 0, distinct: bool = True, num_layers: int | None = None, excluded: dict[int, str] | None = None, model: str = '') -> None: ...

    @property
    def stack(self) -> str:
        """"target" or another."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Global indices of the MoE layers."""

    @property
    def top_k(self) -> int:
        """Ids per token and layer."""

    @property
    def num_experts(self) -> int:
        """Ids are below it."""

    @property
    def shared_columns(self) -> int:
        """Columns behind the top_k ids that are cut off."""

    @property
    def distinct(self) -> bool:
        """Whether the ids of a row differ."""

    @property
    def num_layers(self) -> int:
        """Layers of the whole stack, dense ones included."""

    @property
    def excluded(self) -> dict[int, str]:
        """MoE layers left out on purpose, with the reason."""

    @property
    def model(self) -> str:
        """Free text."""

    @property
    def num_moe_layers(self) -> int:
        """How many layers are recorded."""

    @property
    def id_bytes(self) -> int:
        """Bytes of one id: 1 up to 256 experts, else 2."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's ids."""

    @property
    def fingerprint(self) -> int:
        """64 bits over stack, num_layers, layers, top_k and num_experts."""

    def column_of(self, layer: int) -> int:
        """
        Where a global layer stands in a row. Raises OutOfRangeError if it is not recorded.
        """

    def with_layers(self, layers: numpy.typing.ArrayLike) -> RouteSpec:
        """
        The same spec for some of its layers. Raises OutOfRangeError for one that is not recorded.
        """

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[Any, ...], /) -> None: ...

    @staticmethod
    def from_config(config: object, **fields: Any) -> RouteSpec:
        """
        The spec of a Hugging Face model: its configuration (an object or a dict), or the path of config.json or of
        the folder that holds it. `fields` are arguments of RouteSpec that replace what the configuration says.
        Raises InvalidArgumentError if the model has no MoE layers, UnsupportedError if it is not understood.
        """

class Routes:
    """
    The experts of a run of tokens at every MoE layer. An immutable value; any thread.

    Row t holds the experts used when the token at position t was fed; rows cover positions [start, end). A row is
    valid, or missing for a reason; the ids of a missing row are zero and mean nothing. Copies and slices share
    memory. Made by Store.read, decode and Routes.from_ids.
    """

    @staticmethod
    def from_ids(spec: RouteSpec, ids: numpy.typing.ArrayLike, start: int = 0, valid: numpy.typing.ArrayLike | None = None, version: int | None = None, tokens: numpy.typing.ArrayLike | None = None) -> Routes:
        """
        Routes of ids [rows, layers, top_k] from elsewhere, copied and checked. valid: bool [rows], rows with False
        are missing and their ids not looked at. version: of all valid rows. tokens: [rows]. Raises
        OutOfRangeError or InvalidArgumentError naming row, layer and value of an id that cannot be.
        """

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.unsignedinteger]:
        """
        Experts [rows, layers, top_k], uint8 or uint16, read-only, a view without a copy. Zero where a
        row is missing; see valid.
        """

    @property
    def valid(self) -> numpy.typing.NDArray[numpy.bool]:
        """Which rows hold ids, bool [rows]."""

    @property
    def reasons(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Why each row is missing, [rows]: an index into moetape.REASONS; 0 = valid. A view.
        """

    @property
    def tokens(self) -> numpy.typing.NDArray[numpy.int32] | None:
        """tokens[i] is the token fed at row i; None when not known. A view."""

    @property
    def start(self) -> int:
        """Position of the first row."""

    @property
    def end(self) -> int:
        """Position behind the last row."""

    @property
    def versions(self) -> list[tuple[int, int, int]]:
        """
        (start, end, version) in positions, ascending; missing rows stand in none.
        """

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def complete(self) -> bool:
        """Whether no row is missing."""

    @property
    def missing(self) -> dict[str, int]:
        """Count of missing rows by reason; empty when complete."""

    def slice(self, start: int, end: int) -> Routes:
        """
        Positions [start, end), sharing memory. Raises OutOfRangeError outside this span.
        """

    def with_tokens(self, tokens: numpy.typing.ArrayLike) -> Routes:
        """
        The same routes with the token fed at each row. Raises WrongShapeError for another count.
        """

    def extend(self, other: Routes, on_overlap: str = 'must_agree') -> Routes:
        """
        Joined with `other` by position. Gaps become missing rows, a valid row beats a missing one; two valid
        rows must_agree (ConflictError names the position), or keep_first, keep_last. Raises SpecMismatchError;
        ConflictError where both carry tokens and these differ.
        """

    def without(self, version_below: int) -> Routes:
        """
        Rows computed under an older version become missing. Rows of no version stay.
        """

    def __eq__(self, other: object, /) -> bool: ...

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[Any, ...], /) -> None: ...

    __hash__: ClassVar[None]  # type: ignore[assignment]

def merge_layers(parts: Iterable[Routes]) -> Routes:
    """One Routes of stages that recorded disjoint layers over the same span."""

def merge_rows(parts: Iterable[Routes]) -> Routes:
    """
    One Routes of shares of rows of one spec; two valid rows must agree (ConflictError).
    """

def stitch(tokens: numpy.typing.ArrayLike, captures: Iterable[tuple[Routes, int]]) -> Routes:
    """
    The routes of `tokens` out of several turns of a conversation, (routes, sampled_from) each, where
    sampled_from is the position of the first token that the turn sampled. A row comes from the capture that
    sampled the next token, else from the latest one that fed the same tokens so far, else it is missing.
    Routes carry tokens (InvalidArgumentError).
    """

REASONS: tuple[str, ...]

class Layout:
    """
    Which rows of a router's batch are which tokens of this rank's step. A value; any
    thread. Numbers are checked against the batch when a step is committed, or by place.
    """

    @staticmethod
    def whole() -> Layout:
        """All rows, in order."""

    @staticmethod
    def graph_padded(num_valid: int, num_rows: int) -> Layout:
        """The first num_valid rows of a batch padded to num_rows."""

    @staticmethod
    def dp_concat(counts: numpy.typing.ArrayLike, rank: int) -> Layout:
        """All data-parallel ranks' tokens one behind another."""

    @staticmethod
    def dp_padded(counts: numpy.typing.ArrayLike, padded: int, rank: int) -> Layout:
        """The same, every rank padded to `padded` rows."""

    @staticmethod
    def dp_shards(counts: numpy.typing.ArrayLike, shard_sizes: numpy.typing.ArrayLike, rank: int) -> Layout:
        """
        Sequence-parallel shards of every rank, in DP-then-TP order; shard_sizes include padding.
        """

    @staticmethod
    def tp_shard(num_tokens: int, size: int, rank: int) -> Layout:
        """This rank's shard of num_tokens, cut by ceil-division and padded."""

    @staticmethod
    def tp_split(num_tokens: int, size: int, rank: int) -> Layout:
        """The same, cut like tensor_split and not padded."""

    @staticmethod
    def rows(token_of_row: numpy.typing.ArrayLike) -> Layout:
        """Row i of the batch is token token_of_row[i]; -1 = not ours."""

    @staticmethod
    def infer(batch_rows: int, counts: numpy.typing.ArrayLike, rank: int = 0, shard_sizes: numpy.typing.ArrayLike = (), tp_size: int = 1, tp_rank: int = 0) -> Layout:
        """
        The layout that fits a row count by vLLM's rule, for its drop-in only. counts: tokens per DP rank.
        Raises WrongShapeError when none fits, or two that differ.
        """

    def place(self, batch_rows: int, num_tokens: int) -> tuple[int, int, int]:
        """
        (src, dst, count): batch rows [src, src + count) are tokens [dst, dst + count). Of a layout by rows,
        count is what it says of the whole batch. Raises WrongShapeError or OutOfRangeError with both figures.
        """

    def __repr__(self) -> str: ...

class IdMap:
    """
    Turns physical or dispatch ids into logical ones. to_logical[physical] is the logical id, or -1
    for a slot that holds no routed expert. A value; any thread.
    """

    def __init__(self, to_logical: numpy.typing.ArrayLike) -> None: ...

    @staticmethod
    def interleaved_shared(num_experts: int, num_ranks: int, shared_per_rank: int) -> IdMap:
        """
        Every rank holds its share of the routed experts followed by shared_per_rank shared slots.
        """

    def __call__(self, physical: int) -> int:
        """The logical id; -1 for a slot of no routed expert; -2 outside the map."""

    def __len__(self) -> int: ...

class Blocks:
    """Slots of a paged sequence, made by moetape.blocks. A value."""

    def __len__(self) -> int: ...

def blocks(block_ids: numpy.typing.ArrayLike, block_size: int, num_tokens: int) -> Blocks:
    """
    The slots of tokens [0, num_tokens) of a sequence whose token t stands at
    block_ids[t // block_size] * block_size + t % block_size. A block of -1 is no place. Copies the ids.
    """

class RowSource:
    """
    Rows of a store, a tape or a text that are pulled as they are needed. One thread at a time.
    """

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def start(self) -> int:
        """Position of the first row."""

    def __len__(self) -> int: ...

class Store:
    """
    The routes of one KV address space, one row a slot, kept beside the engine's KV cache.

    num_slots: slots are 0 to num_slots - 1; -1 and pad_slot mean "no place". memory_limit: bytes above which the
    store is refused (MemoryLimitError) before anything is allocated. huge_pages: ask for them. populate: touch all
    pages now instead of in the first commits.

    Slots are int32 or int64 [tokens], a list, or moetape.blocks(...). Steps are 1 to 2**40 - 1. Any method may be
    called from any thread at any time; long calls release the GIL. A closed store raises ClosedError.
    """

    def __init__(self, spec: RouteSpec, num_slots: int, memory_limit: int | None = None, pad_slot: int = -1, huge_pages: bool = True, populate: bool = False) -> None: ...

    @staticmethod
    def required_bytes(spec: RouteSpec, num_slots: int) -> int:
        """Bytes that such a store takes."""

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def num_slots(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def last_step(self) -> int:
        """The last step submitted; 0 before the first."""

    def read(self, slots: numpy.typing.ArrayLike | Blocks, start: int = 0, as_of: int | None = None, tokens: numpy.typing.ArrayLike | None = None) -> Routes:
        """
        The routes of some tokens, by one gather; slots[0] stands at position `start`.

        as_of: the newest step wanted, default the last one submitted. tokens: the token fed at each slot. A slot without a
        row that counts is a missing row, with the reason; one outside the store raises OutOfRangeError. Call it before
        the slots are freed.
        """

    def rows(self, slots: numpy.typing.ArrayLike | Blocks, start: int = 0, as_of: int | None = None) -> RowSource:
        """
        The same without tokens, for encode to gather and encode in one pass. as_of is fixed now; encode it
        before the slots are freed.
        """

    def invalidate(self, slots: numpy.typing.ArrayLike | Blocks, as_of: int | None = None) -> None:
        """
        The slots get a new owner: rows of steps up to as_of (default: the last one submitted) count no more,
        whenever they arrive. An engine that schedules ahead passes the last step scheduled.
        """

    def reset(self, as_of: int | None = None) -> None:
        """The same for all slots."""

    def move(self, source: numpy.typing.ArrayLike | Blocks, target: numpy.typing.ArrayLike | Blocks, step: int | None = None, timeout: float = 10.0) -> None:
        """
        KV went from slots `source` to slots `target`, as if all were read first. A missing row makes its target
        missing. step: must be given where the engine counts steps. Waits `timeout` seconds at most for earlier
        steps to land (TimeoutError).
        """

    def write(self, slots: numpy.typing.ArrayLike | Blocks, routes: Routes, step: int | None = None, version: int | None = None, timeout: float = 10.0) -> None:
        """
        KV came back from elsewhere with its routes, one row a slot. Missing rows make their slots missing.
        version: of rows that carry none. step and timeout as in move. Raises SpecMismatchError.
        """

    def close(self) -> None:
        """
        Frees the memory once calls under way have ended. Routes that were read live on.
        """

    def __enter__(self) -> Store: ...

    def __exit__(self, *exception: object) -> None: ...

class Offender:
    """The first row of a step that was refused. A value."""

    @property
    def layer(self) -> int:
        """Global layer; -1 where it is about none."""

    @property
    def row(self) -> int:
        """Row of the router's batch."""

    @property
    def value(self) -> int:
        """The id as it came; the slot where it was "superseded"."""

    @property
    def fault(self) -> str:
        """
        "negative", "too_large", "repeated", "shared" (a routed id in a shared column),
        "superseded" (its slot was written in this or a later step) or, on a device, "unwritten".
        """

    def __repr__(self) -> str: ...

class CommitReport:
    """What a commit did, in tokens. A value."""

    @property
    def step(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        """That the slots name."""

    @property
    def num_kept(self) -> int:
        """Rows now in the store."""

    @property
    def num_refused(self) -> int:
        """Rows that are missing because of their ids or slot."""

    @property
    def num_no_slot(self) -> int:
        """Tokens with slot -1 or the pad slot."""

    @property
    def num_elsewhere(self) -> int:
        """Tokens whose rows another rank has."""

    @property
    def num_out_of_range(self) -> int:
        """Tokens whose slot, given by the device, the store does not have."""

    @property
    def landed(self) -> bool:
        """
        False while the device is still at it: only step and num_tokens are known.
        """

    @property
    def unwritten(self) -> dict[int, int]:
        """On a device: rows by layer that nobody wrote."""

    @property
    def refused(self) -> dict[str, int]:
        """Refused rows by fault; empty when none."""

    @property
    def first_offender(self) -> Offender | None:
        """The first row that was refused."""

    def __repr__(self) -> str: ...

class Ticket:
    """
    What a commit gives. On the CPU it is ready at once. Any thread; also when the recorder is gone.
    """

    @property
    def ready(self) -> bool:
        """Whether the rows have landed."""

    def wait(self, timeout: float = 10.0) -> None:
        """
        Waits until the rows have landed; TimeoutError after `timeout` seconds.
        """

    @property
    def report(self) -> CommitReport:
        """The CommitReport."""

class LayerBuffer:
    """
    One layer's rows of a lane in device memory, [max_rows, top_k], int16 or int32. At a fixed
    address; keeps the recorder alive. torch.from_dlpack(buffer) is a tensor of it.
    """

    @property
    def data_ptr(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...

    def __dlpack__(self, *args: object, **kwargs: object) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Recorder:
    """
    Takes the router's ids while a forward runs and commits them to a store behind it.

    max_rows: router rows of the largest forward (the gathered batch). lanes: staging buffers; overlapped micro-batches
    use different ones, and one thread at a time uses one. id_maps: moetape.layout.IdMap by global layer, where routers
    give physical ids. memory_limit: bytes. device: "cpu", or "cuda:0": lanes in device memory, ids of CUDA tensors,
    commits by a kernel (docs/cuda.md). commit_path: "mapped" (the kernel writes into the store) or "packed" (one copy
    brings the rows, and whoever asks the ticket places them). Keeps the store alive. Raises InvalidArgumentError naming
    what does not fit, MemoryLimitError, and UnsupportedError where build, machine or spec have no device lanes.
    """

    def __init__(self, store: Store, max_rows: int, lanes: int = 1, id_maps: dict[int, IdMap] | None = None, memory_limit: int | None = None, device: object = 'cpu', commit_path: str = 'mapped') -> None: ...

    @staticmethod
    def required_bytes(spec: RouteSpec, num_slots: int, max_rows: int, lanes: int = 1, device: object = 'cpu', commit_path: str = 'mapped') -> int:
        """
        Bytes of host memory that such a recorder takes, for a store of num_slots; pinned for a device.
        """

    @staticmethod
    def required_device_bytes(spec: RouteSpec, max_rows: int, lanes: int = 1, commit_path: str = 'mapped') -> int:
        """Bytes of device memory that such a recorder takes."""

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def max_rows(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def counters(self) -> dict[str, int]:
        """Calls and rows since creation, by name."""

    @property
    def device(self) -> str:
        """"cpu" or "cuda:0"."""

    def begin(self, lane: int = 0, stream: object | None = None) -> None:
        """
        Opens a step, dropping what a forward that was never committed left (a warm-up, a dummy run).
        """

    def capture(self, layer: int, ids: numpy.typing.ArrayLike, lane: int = 0, offset: int = 0, stream: object | None = None) -> None:
        """
        One layer's ids of rows [offset, offset + n) of the batch, in a router's hook. Keeps the GIL.

        layer: global index. ids: integers [n, top_k] or [n, top_k + shared_columns] in CPU memory, any strides: NumPy, torch,
        the buffer protocol or DLPack; read during the call, not copied before. On a device: a tensor there, read by a kernel
        on `stream` (an int, or what has cuda_stream; None: the default stream), which the caller orders behind what wrote
        them; nothing waits. An id that is no expert makes its row
        missing (counted in the ticket's report). Raises OutOfRangeError for a layer that is not recorded, WrongTypeError,
        WrongShapeError, CapacityError, and AlreadyCapturedError for rows captured twice; after any but the first the step fails
        at commit.
        """

    def capture_raw(self, layer: int, pointer: object, rows: int, columns: int, stride: int, dtype: object, lane: int = 0, offset: int = 0, stream: object | None = None) -> None:
        """
        As capture, for callers who have the address of device memory and no tensor.

        pointer: of element [0, 0]. stride: elements from one row to the next; columns lie side by side. dtype: of the ids.
        UnsupportedError on the CPU.
        """

    def capture_all(self, ids: numpy.typing.ArrayLike, lane: int = 0, order: str = 'ltk', stream: object | None = None) -> None:
        """
        All layers at once: ids [layers, rows, columns] (order "ltk") or [rows, layers, columns] ("tlk").
        """

    def commit(self, slots: numpy.typing.ArrayLike | Blocks, layout: Layout | None = None, step: int | None = None, version: int | numpy.typing.ArrayLike = 0, lane: int = 0, stream: object | None = None) -> Ticket:
        """
        Ends the step: its rows go to the store under `slots`, which name all tokens of this rank's step.

        layout: which rows of the batch are whose tokens, from moetape.layout; default: all, in order. step: the scheduler's
        number, strictly rising; default: the store counts. version: of the policy, an int or one per token. A failed commit
        makes every slot in range that it names missing, touches no other, and closes the step. Raises NotCapturedError and
        WrongShapeError naming the layers, OutOfRangeError and InvalidArgumentError for slots, StepOrderError, ClosedError.
        Arguments that are no slots, layout or numbers of 64 bits at all (WrongTypeError, and WrongShapeError for slots that are
        not 1-D): nothing was done, the step is still open.
        """

    def prepare(self, slots: numpy.typing.ArrayLike | Blocks, layout: Layout | None = None, step: int | None = None, version: int | numpy.typing.ArrayLike = 0, lane: int = 0, stream: object | None = None) -> Ticket:
        """
        The half of commit that is never in a CUDA graph; arguments and errors as commit.

        Before every replay of a graph that holds launch(), on the stream of the replay. After an error the launch of that
        replay commits nothing. UnsupportedError on the CPU.
        """

    def launch(self, lane: int = 0, stream: object | None = None) -> None:
        """
        The other half of commit: one kernel on `stream`, behind the forward, which a CUDA graph may hold.

        Raises NotCapturedError where a stream under capture did not see all layers, InvalidArgumentError for a launch,
        outside a capture, that nobody prepared, UnsupportedError on the CPU.
        """

    def layer_buffer(self, layer: int, lane: int = 0) -> LayerBuffer:
        """
        A layer's rows of a lane in device memory, for a router that writes its choice itself.

        From now on that is the router's duty in every forward; what it leaves out is missing, and the ticket's report says so.
        Raises UnsupportedError on the CPU and for a layer with an IdMap, OutOfRangeError.
        """

DIALECTS: tuple[str, ...]

def encode(routes: Routes | RowSource, dialect: str, missing: str | None = None, *, dtype: object = None, layers: str | None = None, prompt_rows: int = 0) -> Any:
    """
    What engines and trainers send, in a dialect of moetape.wire.DIALECTS: str, bytes ("npy") or an array.

    routes: Routes, or Store.rows(...) for gathering and encoding in one pass. Most dialects cannot say "missing":
    missing rows raise MissingRowsError unless missing= names what stands for them, "zeros" (expert 0 in all columns) or
    "distinct" (experts 0 to top_k - 1). dtype and layers ("all" or "moe") choose where a dialect has a choice;
    prompt_rows: of "vllm-split", how many rows are the prompt's. Long calls release the GIL.
    """

def decode(data: str | bytes | numpy.typing.ArrayLike, dialect: str, *, spec: RouteSpec, start: int | None = None, rows: int | None = None, version: int | None = None, dtype: object | None = None, known_from: int = 0, surplus_rows: int = 0) -> Routes:
    """
    Routes of what an engine sent: text or file (str or bytes), or an array [rows, layers, top_k].

    start: position of the first row (None: as the form says, else 0). rows: how many are expected (WrongShapeError if
    another number comes). version: of the policy, if known. dtype: of ids where the form does not say it. known_from: rows
    at lower positions are not known to the sender; they come out missing, and what stands there is not looked at.
    surplus_rows: last rows that belong to no token that was fed, left out. Strict: CorruptDataError names the place and
    what stood there; ids are checked as in Routes.from_ids; a column of a dense layer must be zero. Long calls release
    the GIL.
    """

def decode_rows(data: str | bytes | bytearray, dialect: str, *, spec: RouteSpec, start: int | None = None, rows: int | None = None, dtype: object | None = None, known_from: int = 0, surplus_rows: int = 0) -> RowSource:
    """
    The rows of a str or bytes, decoded as they are pulled: by Plan.apply, encode or TapeWriter.append.

    The arguments are those of decode. Nothing of the text's size is made, and what stands in rows that are not pulled is
    not looked at; "vllm-split", "lightllm", "prime-rl", "skyrl", "megatron" and tapes are decoded at once.
    """

class OutputFile:
    """
    A file that appears whole or not at all; what moetape._files.whole_file stands on.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = False) -> None: ...

    @property
    def hidden_path(self) -> str:
        """Where the bytes go."""

    def finish(self) -> None:
        """Gives the file its name."""

    def give_up(self) -> None:
        """Leaves nothing of what is unfinished."""

class TapeEntry:
    """What a tape says of a sequence, besides the ids of its rows."""

    @property
    def id(self) -> str: ...

    @property
    def meta(self) -> str:
        """Free text of whoever wrote it."""

    @property
    def start(self) -> int:
        """Position of the first row."""

    @property
    def end(self) -> int:
        """Position behind the last row."""

    @property
    def num_missing(self) -> int:
        """Rows that are missing."""

    @property
    def has_tokens(self) -> bool: ...

    @property
    def versions(self) -> list[tuple[int, int, int]]:
        """[(start, end, version)] in positions."""

class TapeTensor:
    """One tensor of a tape's file."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """As safetensors calls it."""

    @property
    def shape(self) -> list[int]: ...

    @property
    def offset(self) -> int:
        """Bytes, in the file."""

    @property
    def num_bytes(self) -> int: ...

class TapeFile:
    """One file of a tape."""

    @property
    def path(self) -> str:
        """Empty for bytes."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def tensors(self) -> list[TapeTensor]:
        """In the order of the file."""

class TapeFault:
    """Damage that was found."""

    @property
    def sequence(self) -> int | None:
        """Its index; None: the tape as a whole."""

    @property
    def message(self) -> str:
        """Names the file, the place, what was expected and what stood there."""

    def __repr__(self) -> str: ...

class Tape:
    """
    The routes of many sequences in a file (docs/tape-format.md), mapped and lazy: opened by moetape.open.

    tape[i] is the Routes of sequence i, whose ids are views of the file where it has no codec and one layer group. A
    sequence is checked when it is read: CorruptDataError names the file, the sequence and the byte. Missing rows stay
    missing ("not_sent"). Any thread.
    """

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview, name: str = 'tape') -> Tape:
        """
        The Tape in bytes, as tape_bytes makes them: bytes or any C-contiguous buffer, not copied and kept alive; its bytes must
        stay as they are.

        name: stands for the path in errors.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, sequence: int) -> Routes: ...

    def __iter__(self) -> Iterator[Routes]: ...

    def read(self, sequence: int, start: int | None = None, end: int | None = None, layers: numpy.typing.ArrayLike | None = None) -> Routes:
        """
        Positions [start, end) of a sequence (None: all of it), of `layers` (ascending global indices; None: all).

        Touches no more of the file than it must. Raises OutOfRangeError for a sequence, positions or layers that are not
        there. Long calls release the GIL.
        """

    def rows(self, sequence: int) -> RowSource:
        """The rows of a sequence for encode and append, in bounded memory."""

    def entry(self, sequence: int) -> TapeEntry:
        """The TapeEntry of a sequence."""

    def find(self, id: str) -> list[int]:
        """
        Indices of the sequences of this id, ascending. Looks at all entries when first called.
        """

    def verify(self, sequence: int | None = None) -> list[TapeFault]:
        """
        What is damaged, as a list of TapeFault; empty = sound. sequence: this one only; None: the whole tape.

        Every byte is looked at, and the ids are what the spec asks for. Releases the GIL.
        """

    @property
    def name(self) -> str:
        """
        The path that it was opened by (of an index that of the index), or the name of its bytes.
        """

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def num_rows(self) -> int:
        """Rows of all sequences."""

    @property
    def codec(self) -> str:
        """Of the ids: "none" or "bitpack"."""

    @property
    def layer_groups(self) -> list[list[int]]:
        """Layers that lie together; empty = all in one."""

    @property
    def files(self) -> list[TapeFile]:
        """The files that it is made of, as TapeFile."""

    def __repr__(self) -> str: ...

def open(path: str | os.PathLike[str]) -> Tape:
    """
    The Tape in a file, or in the files of an index. path: str or os.PathLike.

    Raises IoError (no such file, no rights), CorruptDataError, UnsupportedError for what a newer moetape may have written.
    """

class TapeWriter:
    """
    Writes a tape in order and in bounded memory; one thread at a time.

    The file takes its name in finish(), whole or not at all. As a context manager it finishes when the block ends, and
    leaves nothing where that or the block raises. codec: "none" or "bitpack". layer_groups: lists of layers that lie together, a
    partition of the spec's, so that a pipeline stage reads only its own. max_file_bytes: what does not fit goes to further
    files, and the path becomes their index. overwrite: take the place of a file that has the name. Raises IoError,
    InvalidArgumentError, ConflictError where a file has the name and overwrite is not set, or it is the index of a sharded
    tape; finish() does so where one has taken it since, and may be called again.
    """

    def __init__(self, path: str | os.PathLike[str], spec: RouteSpec, *, codec: str = 'none', layer_groups: Iterable[Sequence[int]] | None = None, max_file_bytes: int | None = None, overwrite: bool = False) -> None: ...

    def append(self, routes: Routes | RowSource, id: str = '', meta: str = '') -> None:
        """
        Adds one sequence: Routes, or Store.rows(...) in one pass. Where it fails, nothing was added.

        id: need not be unique. meta: free text; JSON is a good choice. Raises SpecMismatchError for another fingerprint,
        ClosedError after finish(). Long calls release the GIL.
        """

    def append_from(self, tape: Tape, sequence: int, start: int | None = None, end: int | None = None) -> None:
        """
        Adds positions [start, end) (None: all) of a sequence of a Tape, with its id, meta and channels.
        """

    def finish(self) -> None:
        """
        Makes the tape appear under its path. Where it fails, nothing has appeared.
        """

    @property
    def num_sequences(self) -> int:
        """Added so far."""

    @property
    def num_rows(self) -> int:
        """Added so far."""

    def __enter__(self) -> TapeWriter: ...

    def __exit__(self, exc_type: type[BaseException], exc_value: BaseException, traceback: types.TracebackType) -> None: ...

def save(path: str | os.PathLike[str], routes: Iterable[Routes], *, sequence_ids: Iterable[str] | None = None, metas: Iterable[str] | None = None, spec: RouteSpec | None = None, codec: str = 'none', layer_groups: Iterable[Sequence[int]] | None = None, max_file_bytes: int | None = None, overwrite: bool = False) -> None:
    """
    Writes a tape of an iterable of Routes, which is walked once and not kept; whole or not at all.

    sequence_ids, metas: iterables of str, as many. spec: needed only where there are no routes. codec, layer_groups,
    max_file_bytes, overwrite: as of TapeWriter.
    """

def tape_bytes(routes: Iterable[Routes], *, sequence_ids: Iterable[str] | None = None, metas: Iterable[str] | None = None, spec: RouteSpec | None = None, codec: str = 'none', layer_groups: Iterable[Sequence[int]] | None = None) -> object:
    """
    The bytes of a tape, for the network: the same as those of the file. See save; Tape.from_bytes reads them.
    """

def merge_tapes(tapes: Iterable[Tape], path: str | os.PathLike[str], *, codec: str = 'none', layer_groups: Iterable[Sequence[int]] | None = None, max_file_bytes: int | None = None, overwrite: bool = False) -> None:
    """
    Writes all sequences of all tapes, in order, as one tape, in bounded memory; the path may be one of them (overwrite=True).

    Raises SpecMismatchError for another fingerprint, InvalidArgumentError for no tapes.
    """

def slice_tape(tape: Tape, path: str | os.PathLike[str], *, sequences: numpy.typing.ArrayLike | None = None, start: int = 0, end: int | None = None, layers: numpy.typing.ArrayLike | None = None, codec: str = 'none', max_file_bytes: int | None = None, overwrite: bool = False) -> None:
    """
    Writes a part of a tape. sequences: their indices in the order wanted. start, end: positions; a sequence is cut to
    them and stays, without rows if it has none there. layers: ascending global indices. None: all. codec, max_file_bytes, overwrite: as of
    TapeWriter.
    """

class Choice:
    """One choice of an answer."""

    @property
    def index(self) -> int: ...

    @property
    def dialect(self) -> str | None:
        """The form its routes had; None without routes."""

    @property
    def routes(self) -> Routes | None:
        """
        None = the answer has none; they may also have no rows, or missing ones.
        """

    def __repr__(self) -> str: ...

class Sniffed:
    """What a text or file may be."""

    @property
    def dialects(self) -> list[str]:
        """The likeliest first."""

    @property
    def answer(self) -> bool:
        """A whole HTTP answer, for read_answer."""

    def __repr__(self) -> str: ...

def read_answer(data: str | bytes | bytearray, *, spec: RouteSpec, asked: bool = True, hop: str = 'answer', dialect: str | None = None, start: int | None = None, rows: int | None = None, version: int | None = None, dtype: object | None = None, known_from: int = 0, surplus_rows: int = 0) -> list[Choice]:
    """
    The routes in a whole HTTP answer, as the server sent it: one Choice per choice.

    data: the JSON text. Understood: vLLM completions, chat and /inference/v1/generate, SGLang /generate (one object or a
    list), completions and chat, LightLLM, prime-rl, SkyRL, NeMo-RL, Megatron. asked: routes were asked for, so that a
    choice without them raises MissingRowsError naming `hop`, who answered; with asked=False its routes are None. dialect:
    where the form must not be told by its looks. The other arguments are those of decode, for every choice.
    """

def sniff(data: str | bytes | bytearray) -> Sniffed:
    """
    What a text or file may be, by its first bytes and its fields.

    UnsupportedError says what was seen. Arrays and empty texts have no marks.
    """

class Alignment:
    """Rows held against tokens."""

    @property
    def expected(self) -> int:
        """Rows that the tokens have."""

    @property
    def found(self) -> int:
        """Valid ones of them."""

    @property
    def missing(self) -> int:
        """The others."""

    @property
    def surplus(self) -> int:
        """Rows at other positions."""

    @property
    def complete(self) -> bool:
        """Nothing is missing, and nothing too much."""

    def __repr__(self) -> str: ...

def splice(prefill: Routes, decoded: Routes, prompt_tokens: int) -> Routes:
    """
    Disaggregated serving: the prefill worker's rows up to prompt_tokens, then those of the decode worker.

    What the decode worker knows of the prompt must agree (ConflictError); decode its answer with
    known_from=prompt_tokens if it knows nothing. WrongShapeError unless the parts meet, MissingRowsError for a prefill
    that lacks rows.
    """

def resume(history: Routes, continuation: Routes) -> Routes:
    """
    A request that was stopped and went on: history, then what the continuation, which holds all rows, has beyond it.

    Rows of the history stay. WrongShapeError for another start, or if the continuation is more than one row shorter.
    """

def align(routes: Routes, num_tokens: int, start: int = 0) -> Alignment:
    """
    How the routes stand against the tokens of their request: N tokens have N - 1 - start rows.
    """

def fit(routes: Routes, num_tokens: int, start: int = 0) -> Routes:
    """
    Exactly the rows [start, num_tokens - 1): what the routes lack is missing. WrongShapeError for rows elsewhere.
    """

def pack(sequences: Iterable[Routes]) -> tuple[Routes, numpy.typing.NDArray[numpy.int64]]:
    """
    (rows, offsets): sequences of any lengths as one run of rows from position 0; those of sequence i are
    rows.slice(offsets[i], offsets[i + 1]). Versions are kept, positions and tokens are not.
    """

class RouteStream:
    """
    Rows that come chunk by chunk with the tokens of a stream, grouped in any way. One thread at a time.
    """

    def __init__(self, spec: RouteSpec, prompt_tokens: int, start: int = 0) -> None: ...

    @property
    def next(self) -> int:
        """Position of the next row: the start of the next chunk's."""

    def add(self, num_new_tokens: int, rows: Routes | None = None) -> None:
        """
        A chunk of num_new_tokens tokens and, if it has rows, these.

        Rows go on at `next`, and never beyond the tokens known so far: WrongShapeError for rows sent twice or left out, and
        for a chunk that holds all rows so far beside new tokens only. A chunk that is refused changes nothing.
        """

    def finish(self) -> Routes:
        """All rows; MissingRowsError if the tokens have more."""

class RowIds:
    """
    Whose token stands at which row of a batch: int64 row ids, (sequence + 1) << 32 | position, 0 for padding.

    For whoever must know a rank's rows before the trainer's own code has cut them: to fetch them, or to pack
    micro-batches. Rows stand in segments, at first one for each sequence. Every method gives a new RowIds, and they are
    called in the order in which the trainer does the same to its tokens. A value; any thread.
    """

    @staticmethod
    def from_lengths(lengths: numpy.typing.ArrayLike) -> RowIds:
        """
        One segment for each sequence, of all its positions. Raises InvalidArgumentError for a length below 0.
        """

    @staticmethod
    def from_cu_seqlens(cu_seqlens: numpy.typing.ArrayLike) -> RowIds:
        """The same from the offsets of packed sequences, [0, ascending ...]."""

    @staticmethod
    def from_spans(spans: Iterable[tuple[int, int, int]]) -> RowIds:
        """One segment for each (sequence, start, end), positions [start, end)."""

    def take(self, segments: numpy.typing.ArrayLike) -> RowIds:
        """These segments in this order: a micro-batch."""

    def pad_each(self, multiple: int, side: str = 'right') -> RowIds:
        """Each segment padded to a multiple. side: 'right' or 'left'."""

    def pad_each_to(self, lengths: int | numpy.typing.ArrayLike, side: str = 'right') -> RowIds:
        """
        Each segment padded to a length, one for all or one for each. Raises WrongShapeError for a longer one.
        """

    def zigzag_each(self, size: int, rank: int) -> RowIds:
        """
        Context parallelism: of 2 * size equal parts of each segment, part rank and part 2 * size - 1 - rank.
        Raises WrongShapeError for a segment that has no such parts; one rank takes all.
        """

    def split_each(self, size: int, rank: int) -> RowIds:
        """Context parallelism: part rank of size equal parts of each segment."""

    def pad(self, multiple: int) -> RowIds:
        """
        All rows padded to a multiple, behind the last; the last segment takes the padding in.
        """

    def pad_to(self, num_rows: int) -> RowIds:
        """All rows padded to this number."""

    def split(self, size: int, rank: int) -> RowIds:
        """
        Part rank of size equal parts of all rows: sequence parallelism, and context parallelism that cuts the
        joined batch. Raises WrongShapeError if there are no such parts.
        """

    def sequence_major(self) -> RowIds:
        """
        From row b * S + s to row s * B + b, as megatron-core's routers see a padded batch. Raises
        WrongShapeError for segments of different lengths.
        """

    def gather(self, index: numpy.typing.ArrayLike) -> RowIds:
        """Row i is row index[i] of these, or padding for -1."""

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """The row ids, a new int64 array [num_rows]."""

    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        Segment i is rows [offsets[i], offsets[i + 1]): the cu_seqlens of these rows.
        """

    @property
    def num_rows(self) -> int: ...

    @property
    def num_segments(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

    __hash__: ClassVar[None]  # type: ignore[assignment]

def pipeline_chunks(num_layers: int, size: int, *, virtual_size: int = 1, first: int | None = None, last: int | None = None, embedding: bool = False, loss: bool = False) -> list[int]:
    """
    Layers of every pipeline chunk, in the model's order, as megatron-core cuts. size: ranks; virtual_size:
    chunks a rank; first, last: layers of the first and last rank where they differ; embedding, loss: each
    counts as a layer. Raises InvalidArgumentError where it does not come out even.
    """

def pipeline_layers(spec: RouteSpec, chunks: numpy.typing.ArrayLike, size: int, rank: int, virtual_stage: int | None = None) -> list[int]:
    """
    The spec's layers that a rank holds, in all its chunks or in one virtual stage, ascending: for
    Plan.from_row_ids. chunks: layers of every chunk, as pipeline_chunks gives them; chunk v * size + rank is
    virtual stage v of the rank.
    """

class Plan:
    """
    The rows that one rank's routers need, cut by the trainer's own slicing. A value; any thread.
    """

    @staticmethod
    def from_row_ids(row_ids: numpy.typing.ArrayLike, layers: numpy.typing.ArrayLike | None = None) -> Plan:
        """
        The plan of the rows that a rank holds.

        row_ids: int64, one-dimensional: (sequence + 1) << 32 | position, cut by the code that cuts the tokens; 0 and -1 are
        padding. int32 is refused (WrongTypeError), since ids do not fit. Or a RowIds. layers: 0-based global indices in the
        order in which apply gives them, none of them for a stage of dense layers; default: all of the spec's. Raises InvalidArgumentError for an id that is neither, or stands twice.
        """

    def apply(self, sources: Tape | Iterable[Routes | RowSource], dtype: object = 'int64', out: numpy.typing.ArrayLike | None = None, first_expert: int = 0, sequences: numpy.typing.ArrayLike | None = None) -> tuple[numpy.typing.NDArray[numpy.integer], numpy.typing.NDArray[numpy.uint8]]:
        """
        (ids, uses): ids [layers, rows, top_k] of `dtype`, uses uint8 [rows].

        sources[s] holds sequence s: Routes, or a RowSource (decode_rows, Store.rows), which is pulled as its rows are needed. Or
        a Tape, on which sequence s is sequences[s], or s; only the rows and layer groups that the plan needs are read. uses says for each row FILL (padding), REPLAYED or LIVE (no record: the router decides);
        ids of the last and first kind are rotating distinct ones. dtype: int16, int32, int64, or an unsigned type that holds
        the ids, by name or as NumPy's or torch's. out: a writable C-order array of that shape and type to write into.
        first_expert: where the rotation begins; a different one for plans that are applied side by side keeps their padding
        from loading the same experts. Raises SpecMismatchError, and OutOfRangeError for a sequence without a source or a layer
        not recorded. Long calls release the GIL.
        """

    def needs(self) -> list[tuple[int, int, int]]:
        """
        [(sequence, start, end)]: the smallest spans of positions that cover what this rank needs.
        """

    def verify(self, sources: Tape | Iterable[Routes | RowSource], tokens: numpy.typing.ArrayLike, sequences: numpy.typing.ArrayLike | None = None) -> int:
        """
        The number of rows whose alignment this proves: tokens[i] is the token at row i of this rank. Raises
        ConflictError naming the first row whose source has another token there. Sources without tokens,
        positions outside them, and padding prove nothing.
        """

    def expert_load(self, sources: Tape | Iterable[Routes | RowSource], sequences: numpy.typing.ArrayLike | None = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        How many recorded rows each expert will get, int64 [layers, num_experts], before the step: to pack
        micro-batches. Rows without a record are not counted.
        """

    @property
    def row_ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """What the plan was made from, padding as 0; a new array."""

    @property
    def num_rows(self) -> int:
        """Rows of this rank."""

    @property
    def layers(self) -> list[int] | None:
        """Global layers in the order of apply; None = all of the spec's."""

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[Any, ...], /) -> None: ...

    __hash__: ClassVar[None]  # type: ignore[assignment]

FILL: int = 0

REPLAYED: int = 1

LIVE: int = 2

class Agreement:
    """
    Sums over rows that were compared. A router is one layer of one row; it is *unequal* where its two lists differ
    in an id or in the order of ids, *rerouted* where they differ as sets. A row is unequal or rerouted if one of its
    routers is. Rates are None where nothing was compared.
    """

    @property
    def num_rows(self) -> int:
        """Rows compared: valid in both."""

    @property
    def num_unequal_rows(self) -> int: ...

    @property
    def num_rerouted_rows(self) -> int: ...

    @property
    def num_routers(self) -> int:
        """Rows x layers."""

    @property
    def num_unequal_routers(self) -> int: ...

    @property
    def num_rerouted_routers(self) -> int: ...

    @property
    def num_ids(self) -> int:
        """top_k for every router."""

    @property
    def num_shared_ids(self) -> int:
        """Of these, ids that stand in both lists."""

    @property
    def unequal_rows_rate(self) -> float | None: ...

    @property
    def rerouted_rows_rate(self) -> float | None: ...

    @property
    def unequal_routers_rate(self) -> float | None: ...

    @property
    def rerouted_routers_rate(self) -> float | None: ...

    @property
    def overlap(self) -> float | None:
        """Shared ids / ids: the mean overlap of the sets."""

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

    __hash__: ClassVar[None]  # type: ignore[assignment]

class ReroutedRow:
    """One of the rows with the most rerouted routers."""

    @property
    def sequence(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def token(self) -> int | None:
        """That was fed there; None when not known."""

    @property
    def num_rerouted_routers(self) -> int: ...

    @property
    def num_unequal_routers(self) -> int: ...

    def __repr__(self) -> str: ...

class Comparison:
    """
    How far records of the same tokens agree: sums, so that those of parts merge into that of the whole.

    max_rerouted_rows: how many rows are kept by name. Memory is bounded by the spec and by how many different versions and
    tokens there are. Made whole by moetape.compare.
    """

    def __init__(self, spec: RouteSpec, max_rerouted_rows: int = 32) -> None: ...

    def add(self, a: Routes, b: Routes, sequence: int | None = None) -> None:
        """
        Two records of one sequence, row by row where positions agree; their spans may differ. Keeps the GIL.

        sequence: what rerouted_rows call the pair; default: the number of pairs added so far. Raises SpecMismatchError for
        another fingerprint, ConflictError naming the first position at which both carry a token and the two differ. A failed
        call adds nothing.
        """

    def merge(self, other: Comparison) -> None:
        """
        As if what was added to `other` had been added here. Raises SpecMismatchError, and
        InvalidArgumentError for another max_rerouted_rows.
        """

    def most_rerouted_tokens(self, most: int) -> list[tuple[int, Agreement]]:
        """
        (token, sums) of the tokens with the most rerouted routers, most first; those with none are left out.
        """

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[Any, ...], /) -> None: ...

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def num_sequences(self) -> int:
        """Pairs added."""

    @property
    def num_rows_only_in_a(self) -> int:
        """Rows valid in a; in b missing or outside its span."""

    @property
    def num_rows_only_in_b(self) -> int: ...

    @property
    def num_rows_in_neither(self) -> int:
        """Rows inside the span of a or b, and valid in none."""

    @property
    def missing_in_a(self) -> dict[str, int]:
        """Rows that are not valid in a, by reason; gap outside its span."""

    @property
    def missing_in_b(self) -> dict[str, int]: ...

    @property
    def total(self) -> Agreement:
        """Over all rows and layers."""

    @property
    def by_layer(self) -> dict[int, Agreement]:
        """By global layer."""

    @property
    def by_position(self) -> list[tuple[int, int, Agreement]]:
        """
        (start, end, sums): at most 64 windows of positions, of one width, a power of two.
        """

    @property
    def by_version(self) -> dict[tuple[int | None, int | None], Agreement]:
        """By the versions of a and b; None = a row that carries none."""

    @property
    def by_token(self) -> dict[int, Agreement]:
        """By the token fed, for rows whose token either record carries."""

    @property
    def rows_by_rerouted_routers(self) -> list[int]:
        """Rows with 0, 1, ... rerouted routers, [layers + 1]."""

    @property
    def rerouted_rows(self) -> list[ReroutedRow]:
        """
        Rows with the most rerouted routers first, then the most unequal ones, then by sequence and position.
        """

    __hash__: ClassVar[None]  # type: ignore[assignment]

def compare(a: Routes | Iterable[Routes], b: Routes | Iterable[Routes], max_rerouted_rows: int = 32) -> Comparison:
    """
    The Comparison of two records: Routes of the same tokens, or iterables of them, pair after pair.

    Iterables are walked in step and not kept, so records larger than memory can be compared. Raises WrongShapeError where
    one ends before the other, InvalidArgumentError if both are empty, SpecMismatchError, ConflictError. Long pairs release
    the GIL.
    """

class Balance:
    """
    How evenly a load (how often each of E experts was chosen) is spread. Made by moetape.balance.
    """

    @property
    def max_over_mean(self) -> float:
        """Busiest expert / mean, 1 .. E; MaxVio is this - 1."""

    @property
    def variation(self) -> float:
        """Standard deviation / mean."""

    @property
    def entropy(self) -> float:
        """Of the shares, / log E: 1 when even, 0 when one expert has all."""

    @property
    def gini(self) -> float:
        """0 when even, 1 - 1/E when one expert has all."""

    @property
    def num_unused(self) -> int:
        """Experts that were never chosen."""

    def __repr__(self) -> str: ...

def balance(load: numpy.typing.ArrayLike) -> Balance | None:
    """
    The Balance of a load, integers [experts] of 0 or more; None where nothing was chosen.
    """

class Stats:
    """
    What records hold, and how evenly they load the experts: sums over valid rows, so that those of parts merge into
    that of the whole. Memory is bounded by the spec and by how many different versions there are. Made whole by
    moetape.stats.
    """

    def __init__(self, spec: RouteSpec) -> None: ...

    def add(self, routes: Routes) -> None:
        """
        One sequence, or a part of one. Keeps the GIL. Raises SpecMismatchError; a failed call adds nothing.
        """

    def merge(self, other: Stats) -> None:
        """
        Sums of both; along load_by_row the two lie side by side, as of ranks that ran at the same time.
        Raises SpecMismatchError.
        """

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[Any, ...], /) -> None: ...

    __hash__: ClassVar[None]  # type: ignore[assignment]

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def num_sequences(self) -> int:
        """Records added."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_valid_rows(self) -> int: ...

    @property
    def missing(self) -> dict[str, int]:
        """Missing rows by reason."""

    @property
    def rows_by_version(self) -> dict[int | None, int]:
        """Valid rows; None = rows that carry no version."""

    @property
    def load(self) -> numpy.typing.NDArray[numpy.int64]:
        """How often each expert was chosen, [layers, num_experts]; a copy."""

    @property
    def load_by_version(self) -> list[tuple[int, int, numpy.typing.NDArray[numpy.int64]]]:
        """
        (first version, one behind the last, load): at most 64 windows of one width, a power of two.
        """

    @property
    def load_by_row(self) -> list[tuple[int, int, numpy.typing.NDArray[numpy.int64]]]:
        """
        The same over rows in the order in which they were added, missing ones too.
        """

    @property
    def balance(self) -> dict[int, Balance | None]:
        """Of `load`, by global layer; None where nothing was chosen."""

    @property
    def reuse(self) -> dict[int, Agreement]:
        """
        By global layer: every valid row against the row before it. overlap is the share of experts that
        neighbouring tokens have in common (by chance: top_k / num_experts).
        """

    @property
    def bytes(self) -> dict[str, int]:
        """All rows in each form: narrow (as kept), bitpacked, int32."""

def stats(routes: Routes | Iterable[Routes]) -> Stats:
    """
    The Stats of one record, or of an iterable of them, which is not kept. Long records release the GIL.

    Raises InvalidArgumentError for an empty iterable, SpecMismatchError.
    """

class CanaryRun:
    """Lists of one layer that follow each other and are wrong in one way."""

    @property
    def layer(self) -> int:
        """Global."""

    @property
    def first_row(self) -> int:
        """Of the array."""

    @property
    def num_rows(self) -> int: ...

    @property
    def wanted(self) -> tuple[int, int, int]:
        """(sequence, position, layer) of the first."""

    @property
    def found(self) -> tuple[int, int, int] | None:
        """What the first holds; None = no list of the canary."""

class CanaryReport:
    """
    What Canary.check found. str() gives the runs, one a line: "layer 17 row 4096: wants sequence 0 position 8192, got
    position 8193".
    """

    @property
    def num_right(self) -> int:
        """Lists, as all of these."""

    @property
    def num_reordered(self) -> int:
        """At their place, their ids in another order."""

    @property
    def num_misplaced(self) -> int:
        """Of another place."""

    @property
    def num_unreadable(self) -> int:
        """No lists of this canary."""

    @property
    def num_padding(self) -> int:
        """Rows without a row id: not looked at."""

    @property
    def num_runs(self) -> int: ...

    @property
    def runs(self) -> list[CanaryRun]:
        """Of misplaced and unreadable lists, by layer, then row."""

    @property
    def all_right(self) -> bool: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Canary:
    """
    Routes whose ids say whose they are: each list of top_k experts encodes (sequence, position, layer).

    Sent through an engine or a trainer in place of real routes, a list that lies at a wrong place names the place that it
    came from. Lists are valid and load the experts evenly. max_length: positions of a sequence; default: the largest power
    of two, at most 2^20, that leaves 64 sequences. Raises CapacityError, with the figures, where the lists of the spec
    carry no sequence of that length. A value; any thread.
    """

    def __init__(self, spec: RouteSpec, max_length: int | None = None) -> None: ...

    @property
    def spec(self) -> RouteSpec:
        """The RouteSpec."""

    @property
    def max_length(self) -> int:
        """Positions of a sequence."""

    @property
    def num_sequences(self) -> int: ...

    def routes(self, sequence: int, length: int, start: int = 0) -> Routes:
        """
        Rows at positions [start, start + length) of a sequence. Raises CapacityError beyond max_length and num_sequences.
        """

    def decode(self, ids: numpy.typing.ArrayLike) -> tuple[int, int, int] | None:
        """
        The (sequence, position, layer) that top_k ids encode, in any order; None for a list that this
        canary has not made.
        """

    def check(self, ids: numpy.typing.ArrayLike, row_ids: numpy.typing.ArrayLike, layers: numpy.typing.ArrayLike | None = None, max_runs: int = 64) -> CanaryReport:
        """
        Looks whether each row of ids [rows, layers, k] holds what belongs there.

        ids: any integer array, any strides; what the trainer got. row_ids: [rows], (sequence + 1) << 32 | position of the token
        at each row, 0 and -1 for padding, as for replay.Plan.from_row_ids. layers: global layers of the columns; default: all of
        the spec. max_runs: how many runs of wrong lists are kept. Raises WrongShapeError, OutOfRangeError for a row id or layer
        that the canary does not know.
        """

    def __repr__(self) -> str: ...

def canary(spec: RouteSpec, sequence: int, length: int) -> Routes:
    """Canary(spec).routes(sequence, length)."""

class RowMove:
    """Rows of b that hold rows of a."""

    @property
    def sequence(self) -> int:
        """Of b, counted from 0."""

    @property
    def position(self) -> int: ...

    @property
    def from_sequence(self) -> int:
        """Of a."""

    @property
    def from_position(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    def __repr__(self) -> str: ...

class Cause:
    """One way in which record b differs from record a."""

    @property
    def kind(self) -> str:
        """
        'rows_shifted', 'rows_elsewhere', 'rows_transposed', 'zigzag', 'contiguous', 'layers_shifted',
        'layers_elsewhere', 'layers_constant', 'experts_mapped' or 'columns_reordered'.
        """

    @property
    def text(self) -> str:
        """What b does, in one sentence."""

    @property
    def num_rows(self) -> int:
        """Out of place when this cause was looked for."""

    @property
    def num_explained(self) -> int:
        """Of these, in place if b is read so."""

    @property
    def share(self) -> float:
        """Explained / rows."""

    @property
    def shift(self) -> int:
        """Of rows_shifted, in positions, and layers_shifted."""

    @property
    def size(self) -> int:
        """Ranks, or sequences of a micro-batch."""

    @property
    def moves(self) -> list[RowMove]:
        """The first places where rows moved."""

    @property
    def layers(self) -> list[tuple[int, int]]:
        """
        (layer of b, layer of a or -1) of kinds of layers, and where a cause is about some layers only.
        """

    @property
    def experts(self) -> dict[int, list[int]]:
        """
        Of experts_mapped, by layer of b: a's expert for each of b's, -1 = not seen.
        """

    def __repr__(self) -> str: ...

class Diagnosis:
    """
    Why two records that should agree do not. str() gives the causes with what share of the rows each explains.
    """

    @property
    def num_rows(self) -> int:
        """Valid in both, at one position."""

    @property
    def num_in_place(self) -> int:
        """Of these, rows with the same experts in half of their layers or more."""

    @property
    def num_rows_only_in_a(self) -> int: ...

    @property
    def num_rows_only_in_b(self) -> int: ...

    @property
    def num_rows_left_out(self) -> int:
        """Beyond max_rows: not looked at."""

    @property
    def num_unexplained(self) -> int:
        """Rows out of place that no cause explains."""

    @property
    def unexplained_layers(self) -> list[int]:
        """
        Layers of b that differ where most others agree, and that no cause explains.
        """

    @property
    def causes(self) -> list[Cause]: ...

    @property
    def in_place(self) -> bool:
        """
        Nothing is out of place, and no cause was found: not that all ids are equal (compare).
        """

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

def diagnose_records(a: Iterable[Routes], b: Iterable[Routes], max_rows: int) -> Diagnosis:
    """
    The Diagnosis of two lists of Routes; moetape.diagnose takes arrays, too.
    """

def render_report(records: Sequence[tuple[str, Stats, None | int, list[tuple[str, int]]]], comparison: None | Comparison, title: str, token_text: dict[int, bytes], sequence_names: dict[int, str]) -> bytes:
    """
    The page of moetape.report as UTF-8, of (name, stats, bytes of the file, bytes of its parts) for each record.

    token_text: token id to UTF-8, or any bytes. sequence_names: of the sequences that the comparison numbers.
    """
