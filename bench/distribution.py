"""What a large training job moves, counted and not moved: routes from rollout servers to trainers' nodes.

    python bench/distribution.py [--random-lengths]

64 rollout servers, 512 ranks on nodes of 8 (PP 4, CP 4, TP 8, EP 64, so 4 replicas), 1,000 sequences of
DeepSeek-V3. Every node's fetches are those of moetape.ray.fetch: the objects that its ranks' own plans touch,
once a node. Sizes of objects are those of real ones; no rank's rows are made.
"""

from __future__ import annotations

import argparse
import functools
import pickle
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

import moetape as mt
from moetape import pieces
from moetape.replay import Plan, RowIds, pipeline_chunks, pipeline_layers

SPEC = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256, num_layers=61)
PP, CP, TP, RANKS, SERVERS = 4, 4, 8, 512, 64
REPLICAS = RANKS // (PP * CP * TP)
CHUNKS = pipeline_chunks(61, size=PP, first=16, last=15)
STAGES = [pipeline_layers(SPEC, CHUNKS, size=PP, rank=stage) for stage in range(PP)]
REF_BYTES = 150  # an object's own part of a reference, its checksum and address


@dataclass
class Count:
    """Bytes of a whole step."""

    nodes: int = 0
    fetched: int = 0  # by all nodes
    partition: int = 0  # ids of the rows and layers that are a node's, once
    most_of_a_node: float = 0.0  # the worst node's fetches over its partition
    most_of_a_server: int = 0  # sent by the busiest rollout server
    driver: int = 0  # references; no payload
    everything: int = 0  # every rank gets int32 of every layer of every sequence, as a broadcast does


def count(lengths: list[int], rows_per_object: int | None) -> Count:
    """Count a step of sequences; rows_per_object None: those of a zig-zag chunk."""
    result = Count()
    sent: Counter[int] = Counter()
    for replica in range(REPLICAS):
        mine = [sequence for sequence in range(len(lengths)) if sequence % REPLICAS == replica]
        for stage in range(PP):
            for context in range(CP):  # the ranks of a TP group are a node
                fetched = partition = 0
                for sequence in mine:
                    num_bytes, num_rows = node_fetch(lengths[sequence], rows_per_object, stage, context)
                    fetched += num_bytes
                    partition += num_rows * len(STAGES[stage]) * SPEC.top_k
                    sent[sequence % SERVERS] += num_bytes
                result.nodes += 1
                result.fetched += fetched
                result.partition += partition
                result.most_of_a_node = max(result.most_of_a_node, fetched / partition)
    result.most_of_a_server = max(sent.values())
    result.driver = sum(reference_bytes(length, rows_per_object) for length in lengths)
    result.everything = RANKS * sum(length - 1 for length in lengths) * SPEC.num_moe_layers * SPEC.top_k * 4
    return result


@functools.cache
def node_fetch(length: int, rows_per_object: int | None, stage: int, context: int) -> tuple[int, int]:
    """(bytes fetched, rows needed) for one sequence by the node of a stage and a context rank."""
    touched: set[pieces.Piece] = set()
    num_rows = 0
    for tensor_rank in range(TP):
        rows = RowIds.from_lengths([length]).pad_each(2 * CP * TP).zigzag_each(CP, context)
        _, wants = pieces.wants(Plan.from_row_ids(rows.split(TP, tensor_rank), layers=STAGES[stage]), SPEC)
        touched |= {
            piece for want in wants for piece in objects(length, rows_per_object) if want.touches(piece)
        }
        num_rows += sum(min(want.end, length - 1) - want.start for want in wants)
    return sum(piece.num_bytes for piece in touched), num_rows


@functools.cache
def objects(length: int, rows_per_object: int | None) -> list[pieces.Piece]:
    """The objects of a sequence, of which the last token has no row."""
    padded = -(-length // (2 * CP * TP)) * 2 * CP * TP
    ids = (np.arange(length - 1)[:, None, None] + np.arange(58)[:, None] + np.arange(8)) % 256
    routes = mt.Routes.from_ids(SPEC, ids.astype(np.uint8), version=1, tokens=np.arange(length - 1))
    return [piece for piece, _ in pieces.cut(routes, STAGES, rows_per_object or padded // (2 * CP))]


def reference_bytes(length: int, rows_per_object: int | None) -> int:
    found = objects(length, rows_per_object)
    return len(pickle.dumps(found)) + REF_BYTES * len(found)


def line(name: str, one: Count) -> str:
    cells = [
        f"{one.fetched / 1e9:,.1f} GB",
        f"{one.fetched / one.partition:.3f}",
        f"{one.most_of_a_node:.3f}",
        f"{one.most_of_a_server / 1e9:.2f} GB",
        f"0 and {one.driver / 1e6:.1f} MB",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random-lengths", action="store_true", help="16k to 32k tokens, few different ones")
    arguments = parser.parse_args()
    draw = random.Random(0)
    some = [draw.randint(16_384, 32_768) for _ in range(20)]
    lengths = [draw.choice(some) if arguments.random_lengths else 32_768 for _ in range(1000)]
    print(
        "| objects | moved | of the partition | worst node | busiest server | driver: payload, references |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for name, rows in (
        ("a zig-zag chunk of a stage", None),
        ("4,096 rows of a stage", 4096),
        ("a stage", 1 << 20),
    ):
        found = count(lengths, rows)
        print(line(name, found))
    print(f"| int32 of everything to every rank | {found.everything / 1e9:,.0f} GB | | | | |")


if __name__ == "__main__":
    main()
