"""A short run of examples/train_small_moe.py learns, and records what it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import moetape

pytest.importorskip("torch")
pytest.importorskip("transformers")

FILE = Path(__file__).parents[2] / "examples" / "train_small_moe.py"
SMALL = {
    "NUM_VERSIONS": 2,
    "BATCH": 4,
    "CONTEXT": 48,
    "NUM_READ": 3,
    "LENGTH_READ": 40,
    "NUM_PROMPTS": 2,
    "LENGTH_PROMPT": 10,
    "NEW_TOKENS": 6,
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_small_moe", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_small_moe", module)
    spec.loader.exec_module(module)
    for name, value in SMALL.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_it_learns_and_records_each_version_twice(script: ModuleType, tmp_path: Path) -> None:
    record, summaries = script.run(steps=40, seed=3)
    assert [one.version for one in summaries] == [1, 2]
    assert summaries[1].held_out_loss < summaries[0].held_out_loss < 5.4  # ln 256 = 5.55 knows nothing
    assert all(balance.max_over_mean > 1.5 for balance in summaries[1].stats.balance.values())
    assert summaries[1].comparison.total.num_rows == 3 * 40 + 2 * 15
    assert summaries[0].comparison.total.num_rerouted_routers > 0

    names = record.sequence_ids
    assert len(set(names)) == len(names) == len(record.served) == len(record.trained) == 10
    assert [name.split("/")[:2] for name in names[:5]] == [["v1", "read"]] * 3 + [["v1", "continued"]] * 2
    for name, served, trained in zip(names, record.served, record.trained, strict=True):
        length = 40 if "/read/" in name else 10 + 6 - 1  # the last sampled token is not fed
        assert (len(served), served.complete, trained.complete) == (length, True, True)
        assert served.versions == trained.versions == [(0, length, int(name[1]))]
        assert served.spec == trained.spec
        assert served.tokens.tolist() == trained.tokens.tolist()
    assert record.served[0].tokens.tolist() == record.served[5].tokens.tolist()  # read again by version 2
    assert record.served[0].ids.tolist() != record.served[5].ids.tolist()

    script.save(record, tmp_path)
    for name, routes in (("run.tape", record.served), ("other.tape", record.trained)):
        tape = moetape.open(tmp_path / name)
        assert list(tape) == routes
        assert [tape.entry(index).id for index in range(len(tape))] == names


def test_equal_seeds_give_equal_routes(script: ModuleType) -> None:
    first, second = (script.run(steps=2, seed=1)[0] for _ in range(2))
    assert (first.sequence_ids, first.served, first.trained) == (
        second.sequence_ids,
        second.served,
        second.trained,
    )
