"""moetape against the expressions of the engines' own capturers, in one process and on one thread.

Every contestant's result is checked before it is timed; contestants take turns, round by round, and the table
shows the median of the per-round ratios with its quartiles. Run by `make bench`, which runs it twice: with
glibc's huge-page settings, without which page faults of fresh results decide the figure, and without them.

Shape: DeepSeek-V3, 58 MoE layers of 61, 8 of 256 experts, 524,288 slots in pages of 64.
"""

import argparse
import base64
import io
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

TUNABLES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4000000000:glibc.malloc.trim_threshold=8000000000"
)
if "--plain-malloc" not in sys.argv and os.environ.get("GLIBC_TUNABLES") != TUNABLES:
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    os.execv(sys.executable, [sys.executable, *sys.argv])
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import pybase64  # noqa: E402
import torch  # noqa: E402

import moetape as mt  # noqa: E402

torch.set_num_threads(1)

NUM_SLOTS = 524_288
PAGE = 64
ALL_LAYERS = 61
LAYERS = list(range(3, 61))
TOP_K = 8
EXPERTS = 256


def random_ids(rng: np.random.Generator, rows: int) -> np.ndarray:
    """int32 ids [58, rows, 8], distinct within a row."""
    first = rng.integers(0, EXPERTS, (len(LAYERS), rows, 1))
    step = rng.integers(1, EXPERTS // TOP_K, (len(LAYERS), rows, 1))
    return ((first + step * np.arange(TOP_K)) % EXPERTS).astype(np.int32)


def paged_slots(rng: np.random.Generator, rows: int) -> np.ndarray:
    pages = rng.choice(NUM_SLOTS // PAGE, (rows + PAGE - 1) // PAGE, replace=False)
    return (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)[:rows].astype(np.int64)


def random_slots(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.choice(NUM_SLOTS, rows, replace=False).astype(np.int64)


@dataclass
class Contest:
    """One line of the table: both sides do the work of `run(i)`, timed; `prepare(i)` is not."""

    work: str
    peer: str
    target: float
    ours: Callable[[int], object]
    theirs: Callable[[int], object]
    rounds: int
    prepare_ours: Callable[[int], object] = lambda i: None
    prepare_theirs: Callable[[int], object] = lambda i: None


def seconds(run: Callable[[int], object], prepare: Callable[[int], object], i: int) -> float:
    prepare(i)
    begin = time.perf_counter()
    result = run(i)
    end = time.perf_counter()
    del result
    return end - begin


def measure(contest: Contest) -> dict:
    for i in range(3):
        seconds(contest.ours, contest.prepare_ours, i)
        seconds(contest.theirs, contest.prepare_theirs, i)
    ours, theirs = [], []
    for i in range(contest.rounds):
        ours.append(seconds(contest.ours, contest.prepare_ours, i))
        theirs.append(seconds(contest.theirs, contest.prepare_theirs, i))
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "work": contest.work,
        "peer": contest.peer,
        "target": contest.target,
        "ratio": median,
        "quartiles": [low, high],
        "ours_us": statistics.median(ours) * 1e6,
        "peer_us": statistics.median(theirs) * 1e6,
    }


class Engines:
    """The host buffers of the three engines and ours, filled with the same rows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.sglang = torch.zeros((NUM_SLOTS, ALL_LAYERS, TOP_K), dtype=torch.int32)
        self.vllm = np.zeros((NUM_SLOTS, ALL_LAYERS, TOP_K), dtype=np.uint8)
        self.lightllm = torch.zeros((len(LAYERS), NUM_SLOTS, TOP_K), dtype=torch.int8)
        self.lightllm_now = torch.zeros((NUM_SLOTS, len(LAYERS), TOP_K), dtype=torch.uint8)
        spec = mt.RouteSpec(layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS)
        self.store = mt.Store(spec, num_slots=NUM_SLOTS, populate=True)
        self.recorder = mt.Recorder(self.store, max_rows=8192)
        # LightLLM sends MoE layers only: the same form with as many columns.
        dense = mt.RouteSpec(layers=list(range(len(LAYERS))), top_k=TOP_K, num_experts=EXPERTS)
        self.moe_store = mt.Store(dense, num_slots=NUM_SLOTS, populate=True)
        self.moe_recorder = mt.Recorder(self.moe_store, max_rows=8192)
        self.fill(np.arange(NUM_SLOTS, dtype=np.int64))

    def fill(self, slots: np.ndarray) -> None:
        for first in range(0, len(slots), 8192):
            self.fill_step(slots[first : first + 8192])

    def fill_step(self, slots: np.ndarray) -> None:
        ids = random_ids(self.rng, len(slots))
        rows = ids.transpose(1, 0, 2)
        index = torch.from_numpy(slots)
        self.sglang[index, 3:] = torch.from_numpy(np.ascontiguousarray(rows))
        self.vllm[slots, 3:] = rows
        self.lightllm[:, index, :] = torch.from_numpy(ids.astype(np.uint8).view(np.int8))
        self.lightllm_now[index] = torch.from_numpy(rows.astype(np.uint8))
        self.capture(ids)
        self.recorder.commit(slots)
        for layer in range(len(LAYERS)):
            self.moe_recorder.capture(layer, ids[layer])
        self.moe_recorder.commit(slots)

    def capture(self, ids: np.ndarray) -> None:
        for layer, layer_ids in zip(LAYERS, ids, strict=True):
            self.recorder.capture(layer, layer_ids)


def place_contests(
    engines: Engines, rows: int, slots_of: Callable, targets: tuple, rounds: int
) -> list[Contest]:
    rng = engines.rng
    # Steps write slots that were given out just now, not those of a moment ago.
    num = 65_536 // rows
    slots = [slots_of(rng, rows) for _ in range(num)]
    indexes = [torch.from_numpy(s) for s in slots]
    ids = random_ids(rng, rows)
    token_major = np.zeros((rows, ALL_LAYERS, TOP_K), dtype=np.int32)
    token_major[:, 3:] = ids.transpose(1, 0, 2)
    sglang_rows = torch.from_numpy(token_major)
    vllm_rows = token_major.astype(np.uint8)
    lightllm_rows = torch.from_numpy(ids.astype(np.uint8).view(np.int8))

    def sglang(i: int) -> None:
        engines.sglang[indexes[i % num]] = sglang_rows

    def vllm(i: int) -> None:
        engines.vllm[slots[i % num]] = vllm_rows

    def lightllm(i: int) -> None:
        engines.lightllm[:, indexes[i % num], :] = lightllm_rows

    def ours(i: int) -> object:
        return engines.recorder.commit(slots[i % num])

    def capture(i: int) -> None:
        engines.capture(ids)

    capture(0)
    ours(0)
    for peer in (sglang, vllm, lightllm):
        peer(0)
    expected = ids.transpose(1, 0, 2)
    assert np.array_equal(engines.store.read(slots[0]).ids, expected)
    assert np.array_equal(engines.sglang[indexes[0]].numpy()[:, 3:], expected)
    assert np.array_equal(engines.vllm[slots[0]][:, 3:], expected)
    stored = engines.lightllm[:, indexes[0], :].numpy().view(np.uint8)
    assert np.array_equal(stored.transpose(1, 0, 2), expected)

    work = f"place {rows:,} rows"
    return [
        Contest(work, name, target, ours, peer, rounds, prepare_ours=capture)
        for name, target, peer in zip(
            ("SGLang, torch int32", "vLLM, NumPy uint8", "LightLLM, torch int8 layer-major"),
            targets,
            (sglang, vllm, lightllm),
            strict=True,
        )
    ]


def step_contests(engines: Engines, rows: int, target: float, rounds: int) -> list[Contest]:
    slots = [paged_slots(engines.rng, rows) for _ in range(8)]
    ids = random_ids(engines.rng, rows)
    tensors = [torch.from_numpy(layer_ids) for layer_ids in ids]
    device_buffer = torch.zeros((8192, ALL_LAYERS, TOP_K), dtype=torch.int32)

    def ours(i: int) -> object:
        engines.recorder.begin()
        for layer, layer_ids in zip(LAYERS, tensors, strict=True):
            engines.recorder.capture(layer, layer_ids)
        return engines.recorder.commit(slots[i % 8])

    def vllm(i: int) -> None:
        for layer, layer_ids in zip(LAYERS, tensors, strict=True):
            device_buffer[:rows, layer] = layer_ids
        snapshot = device_buffer[:rows].to(torch.uint8)
        engines.vllm[slots[i % 8]] = snapshot.numpy()

    ours(0)
    vllm(0)
    assert np.array_equal(engines.store.read(slots[0]).ids, engines.vllm[slots[0]][:, 3:])
    return [Contest(f"whole step of {rows:,} rows", "vLLM's expressions", target, ours, vllm, rounds)]


def gather_contests(engines: Engines, rows: int, rounds: int) -> list[Contest]:
    """Each work with cold caches, as when a request ends that was written long ago, and with warm ones."""
    other_work = np.ones(512 << 20, np.uint8)

    def cool(i: int) -> None:
        other_work[::64] += 1

    num = NUM_SLOTS // rows
    pages = engines.rng.permutation(NUM_SLOTS // PAGE).reshape(num, -1, 1)
    slots = list((pages * PAGE + np.arange(PAGE)).reshape(num, rows))
    indexes = [torch.from_numpy(s) for s in slots]

    def ours(i: int) -> object:
        return engines.store.read(slots[i % num])

    def sglang(i: int) -> object:
        return engines.sglang[indexes[i % num]]

    def vllm(i: int) -> object:
        return engines.vllm[slots[i % num]]

    def lightllm(i: int) -> object:
        return engines.lightllm[:, indexes[i % num], :]

    def lightllm_now(i: int) -> object:
        return engines.lightllm_now[indexes[i % num], :, :]

    for i in range(num):
        engines.fill(slots[i])
        expected = engines.store.read(slots[i])
        assert expected.complete
        assert np.array_equal(expected.ids, sglang(i).numpy()[:, 3:])
        assert np.array_equal(expected.ids, vllm(i)[:, 3:])
        assert np.array_equal(expected.ids, lightllm(i).numpy().view(np.uint8).transpose(1, 0, 2))
        assert np.array_equal(expected.ids, lightllm_now(i).numpy())

    gathers = [
        ("SGLang, torch int32", 8, ours, sglang),
        ("vLLM, NumPy uint8", 1.2, ours, vllm),
        ("LightLLM, torch int8 layer-major", 20, ours, lightllm),
        ("LightLLM today, torch uint8", 7, ours, lightllm_now),
    ]

    def ours_text(i: int) -> str:
        return mt.encode(engines.store.rows(slots[i % num]), "vllm")

    def ours_moe_text(i: int) -> str:
        return mt.encode(engines.moe_store.rows(slots[i % num]), "vllm")

    def sglang_text(i: int) -> str:
        return pybase64.b64encode(sglang(i).numpy().tobytes()).decode("utf-8")

    def vllm_text(i: int) -> str:
        file = io.BytesIO()
        np.save(file, vllm(i))
        return base64.b64encode(file.getvalue()).decode("ascii")

    def lightllm_text(i: int) -> str:
        array = pickle.loads(pickle.dumps(lightllm_now(i).numpy()))
        return base64.b64encode(array.tobytes()).decode("ascii")

    assert ours_text(0) == vllm_text(0)
    moe_columns = np.load(io.BytesIO(base64.b64decode(ours_moe_text(0))))
    assert np.array_equal(moe_columns, lightllm_now(0).numpy())
    assert np.array_equal(
        np.frombuffer(base64.b64decode(sglang_text(0)), np.int32), sglang(0).numpy().reshape(-1)
    )

    texts = [
        ("SGLang, tobytes + pybase64", 9, ours_text, sglang_text),
        ("vLLM, npy + base64", 6.5, ours_text, vllm_text),
        ("LightLLM today, pickle + base64", 12, ours_moe_text, lightllm_text),
    ]
    return [
        Contest(f"{work}, {state}", peer, target, mine, theirs, rounds, prepare, prepare)
        for state, prepare in (("cold", cool), ("warm", lambda i: None))
        for work, lines in ((f"gather {rows:,} rows", gathers), (f"gather and text of {rows:,}", texts))
        for peer, target, mine, theirs in lines
    ]


def slice_contests(rng: np.random.Generator, rows: int, rounds: int) -> list[Contest]:
    """The text of one sample into a rank's int32 [layer][row][k]: all of it, and with CP 2 and PP 4."""
    ids = np.ascontiguousarray(random_ids(rng, rows).transpose(1, 0, 2))
    spec = mt.RouteSpec(layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS)
    routes = mt.Routes.from_ids(spec, ids)
    every = mt.replay.RowIds.from_lengths([rows])
    return [
        contest
        for work, part, layers in (
            ("whole sample", every, LAYERS),
            ("CP 2, PP 4", every.zigzag_each(2, 0), list(range(16, 32))),
        )
        for dialect in ("vllm", "sglang")
        for contest in slices_of(routes, dialect, f"{dialect} to slice, {work}", part, layers, rounds)
    ]


def slices_of(
    routes: mt.Routes,
    dialect: str,
    work: str,
    part: mt.replay.RowIds,
    layers: list[int],
    rounds: int,
) -> list[Contest]:
    text = mt.encode(routes, dialect)
    plan = mt.replay.Plan.from_row_ids(part, layers=layers)
    rows, quarter = len(routes), len(routes) // 4
    first, end = layers[0], layers[-1] + 1

    def decoded() -> np.ndarray:
        data = pybase64.b64decode_as_bytearray(text, validate=True)
        if dialect == "vllm":
            return np.load(io.BytesIO(data))
        return np.frombuffer(data, np.int32).reshape(rows, ALL_LAYERS, TOP_K)

    def numpy(i: int) -> object:
        all_rows = decoded()[:, first:end]
        if part.num_rows < rows:
            all_rows = np.concatenate([all_rows[:quarter], all_rows[3 * quarter :]])
        return np.ascontiguousarray(all_rows.transpose(1, 0, 2), dtype=np.int32)

    def torch_(i: int) -> object:
        all_rows = torch.from_numpy(decoded())[:, first:end]
        if part.num_rows < rows:
            all_rows = torch.cat([all_rows[:quarter], all_rows[3 * quarter :]])
        return all_rows.permute(1, 0, 2).to(torch.int32).contiguous()

    def ours(i: int) -> object:
        return plan.apply([mt.decode_rows(text, dialect, spec=routes.spec)], dtype="int32")[0]

    assert np.array_equal(ours(0), numpy(0))
    assert np.array_equal(ours(0), np.asarray(torch_(0)))
    return [
        Contest(work, name, 6, ours, peer, rounds) for name, peer in (("NumPy", numpy), ("torch", torch_))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain-malloc", action="store_true", help="leave glibc's settings as they are")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    scale = 0.1 if args.quick else 1.0

    def rounds(full: int) -> int:
        return max(5, int(full * scale))

    engines = Engines(np.random.default_rng(20261130))
    contests = (
        place_contests(engines, 8192, paged_slots, (5.5, 1.25, 20), rounds(60))
        + place_contests(engines, 256, random_slots, (5.5, 1.45, 24), rounds(400))
        + step_contests(engines, 8192, 1.5, rounds(40))
        + step_contests(engines, 256, 1.5, rounds(200))
        + gather_contests(engines, 32_768, rounds(30))
        + slice_contests(engines.rng, 32_768, rounds(30))
    )
    print(f"malloc: {'as it is' if args.plain_malloc else TUNABLES}")
    print(f"torch {torch.__version__}, NumPy {np.__version__}; one thread; median ratio [quartiles]")
    names = ("work", "peer", "peer us", "ours us", "ratio", "quartiles", "at least")
    print("{:32} {:34} {:>10} {:>10} {:>7} {:>15} {:>8}".format(*names))
    results = []
    for contest in contests:
        r = measure(contest)
        results.append(r)
        low, high = r["quartiles"]
        print(
            f"{r['work']:32} {r['peer']:34} {r['peer_us']:10.0f} {r['ours_us']:10.0f} {r['ratio']:6.2f}x"
            f" [{low:5.2f}, {high:5.2f}] {r['target']:7.2f}x",
            flush=True,
        )
    row_bytes = engines.store.spec.row_bytes
    bytes_a_slot = engines.store.memory_bytes / NUM_SLOTS
    print(f"memory: {bytes_a_slot:.2f} bytes a slot; rows of {row_bytes} + 16")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"plain_malloc": args.plain_malloc, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
