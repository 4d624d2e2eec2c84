"""Replay on a GPU: the same bits, the ids that were recorded, and masked experts found without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import moetape as mt

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch has no GPU here", allow_module_level=True)

from moetape.trainers.transformers import Counts, attach  # noqa: E402
from replay_helpers import experts_input, right_padded, wrong_routes  # noqa: E402
from tiny_models import tiny  # noqa: E402
from toy_moe import MaskingRouter, toy  # noqa: E402

BATCH = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_own_routes_replay_and_foreign_ones_arrive(name: str) -> None:
    model = tiny(name).train().cuda()
    batch = {key: value.cuda() for key, value in BATCH.items()}
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        plain = model(**batch).logits
    with session.replay(recording.routes) as replay:
        own = model(**batch).logits
    own.square().mean().backward()
    assert replay.counts == Counts(replayed=8, padding=2)
    torch.testing.assert_close(own, plain)
    foreign = [wrong_routes(one) for one in recording.routes]
    with (
        session.replay(foreign, attention_mask=BATCH["attention_mask"]),
        experts_input(model, session.spec) as ids,
    ):
        model(**batch).logits.square().mean().backward()
    assert np.array_equal(ids[2][0][:5], foreign[0].ids[:, -1])
    session.check()


class Fed(torch.nn.Module):
    """A toy model that is fed token ids."""

    def __init__(self, router: torch.nn.Module) -> None:
        super().__init__()
        self.toy = toy(router)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.toy(torch.ones(input_ids.numel(), 6, device=input_ids.device))


def test_a_masked_expert_is_found_without_waiting() -> None:
    model = Fed(MaskingRouter()).cuda()
    session = attach(model)
    tokens = torch.zeros(1, 3, dtype=torch.int64, device="cuda")
    masked = mt.Routes.from_ids(session.spec, np.array([[[0, 6]]] * 3))
    with session.replay([masked], attention_mask=[[1, 1, 1]]):
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(mt.UnsupportedError, match=r"masked scores.*layers\.0\.mlp\.gate"):
        session.check()
