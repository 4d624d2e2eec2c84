"""A short run of examples/train_grpo.py: TRL learns on the recorded experts, in all of its passes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moetape.trainers.transformers import Replay

pytest.importorskip("torch")
pytest.importorskip("trl")

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "train_grpo.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_grpo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_grpo", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROMPTS", module.PROMPTS[:2])
    monkeypatch.setattr(module, "ANSWERS_PER_PROMPT", 4)
    monkeypatch.setattr(module, "ANSWER_TOKENS", 6)
    return module


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """The blocks that were left, in order."""
    left: list[Replay] = []
    leave = Replay.__exit__

    def noted(self: Replay, *args: object) -> None:
        leave(self, *args)  # type: ignore[arg-type]
        left.append(self)

    monkeypatch.setattr(Replay, "__exit__", noted)
    return left


def test_it_trains_on_the_recorded_experts(
    script: ModuleType, blocks: list[Replay], capsys: pytest.CaptureFixture[str]
) -> None:
    both = script.run(steps=3, seed=1)
    assert len(blocks) == 3 * (1 + 2)  # in each step that of the old policy, and two updates
    for one in (block.counts for block in blocks):
        assert (one.missing, one.beyond, one.dropped) == (0, 8, 0)  # a last token of each was never fed
        assert one.replayed >= 8 * len("say it")
    live, replayed = both[False], both[True]
    assert len(live.rewards) == len(replayed.rewards) == 3
    assert all(share > 0 for share in live.rerouted)
    assert all(share == 0 for share in replayed.rerouted)
    assert sum(replayed.logprob_gaps) < 0.6 * sum(live.logprob_gaps)
    assert replayed.rewards[0] == live.rewards[0]  # the same start
    assert re.search(r"^  0 to 3 .* 0\.00% ", capsys.readouterr().out, re.MULTILINE)


def test_with_adapters_the_reference_pass_is_live(
    script: ModuleType, blocks: list[Replay], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear")
    trainer = script.new_trainer(str(tmp_path), True, 2, 0, peft_config=config)
    trainer.beta = 0.1  # asks for the reference
    trainer.server.load_state_dict = lambda weights: None  # it samples with weights of its own
    trainer.train()
    passes = ["replayed" if block.counts.replayed else "live" for block in blocks]
    assert passes == ["replayed", "live", "replayed", "replayed"] * 2  # old policy, reference, two updates
    assert [block.is_live for block in blocks] == [one == "live" for one in passes]


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "replay-transformers.md").read_text()
    [block] = [
        one
        for one in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        if "super()" in one
    ]
    assert block in FILE.read_text()
