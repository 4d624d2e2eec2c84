"""slime's and miles' routing replay by their names; miles' own code beside ours, call by call."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import moetape as mt  # noqa: E402
from megatron_marks import on_ranks  # noqa: E402
from megatron_run import check  # noqa: E402
from moetape.trainers import miles, slime  # noqa: E402
from peer_code import peer_code  # noqa: E402
from peer_ranks import SEEDS, Rank  # noqa: E402
from test_peers_miles import MILES_MULTIPLE, miles_replay_rows  # noqa: E402

SCORES = [torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def native(scores: Any, k: int, num_groups: Any = None, group_topk: Any = None) -> Any:
    return torch.topk(scores, k, dim=1)


@pytest.fixture
def their_miles(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda one, device=None, pin_memory=False: plain(one))
    return peer_code(
        "miles-rl-0.0.2",
        "miles/utils/replay_base.py",
        "Replay",
        "BaseReplayManager",
        "RoutingReplayManager",
        torch=torch,
        os=os,
        _get_rank=lambda: 0,
        __name__=__name__,
    )


def story(api: Any) -> list[Any]:
    """Record three micro-batches, replay them in a logprob pass, in forwards and in recomputation."""
    manager = api.RoutingReplayManager()
    manager.enabled = True
    module = torch.nn.Identity()
    manager.register_to_module(module, "routing_replay")
    topk = manager.get_topk_fn(native, return_probs=True)
    seen: list[Any] = []

    def run(stage: str, scores: Any) -> None:
        manager.stage = stage
        module(scores)
        seen.extend(topk(scores, 2, None, None))

    for scores in SCORES:
        run("record", scores)
    for scores in SCORES:
        run("replay_forward", -scores)
    manager.clear_all_forward()
    for at in (0, 1, 2):
        run("replay_forward", -SCORES[at])
        run("replay_backward", -SCORES[at])
    run("fallthrough", SCORES[0])
    manager.clear_all()
    [replay] = list(manager.replays)
    seen.append(torch.tensor([len(replay.top_indices_list), replay.forward_index, replay.backward_index]))
    manager.enabled = False
    run("replay_forward", SCORES[0])
    return seen


def test_miles_manager_answers_as_miles(their_miles: Any) -> None:
    assert all(map(torch.equal, story(miles), story(their_miles)))
    for name in ("Replay", "RoutingReplayManager"):
        theirs = {one for one in dir(getattr(their_miles, name)) if not one.startswith("_")}
        assert theirs <= set(dir(getattr(miles, name)))


@pytest.fixture
def slime_on(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ENABLE_ROUTING_REPLAY", "1")
    slime.RoutingReplay.all_routing_replays.clear()
    yield monkeypatch
    slime.set_routing_replay(None)
    slime.RoutingReplay.all_routing_replays.clear()


def test_slime_stages(slime_on: pytest.MonkeyPatch) -> None:
    module = torch.nn.Identity()
    slime.register_routing_replay(module)
    slime.register_routing_replay(module)  # once is enough
    assert list(slime.RoutingReplay.all_routing_replays) == [module.routing_replay]
    topk = slime.get_routing_replay_compute_topk(native)

    def run(stage: str, scores: Any) -> Any:
        slime_on.setenv("ROUTING_REPLAY_STAGE", stage)
        module(scores)
        return topk(scores, 2)

    chosen = [run("record", scores)[1] for scores in SCORES]
    for scores, ids in zip(SCORES, chosen, strict=True):
        values, again = run("replay_forward", -scores)
        assert torch.equal(again, ids)
        assert torch.equal(values, (-scores).gather(1, ids))
    with pytest.raises(mt.ConflictError, match=r"forward 3, backward 0 of 3"):
        slime.RoutingReplay.assert_all_consumed()
    assert all(torch.equal(run("replay_backward", -s)[1], ids) for s, ids in zip(SCORES, chosen, strict=True))
    slime.RoutingReplay.assert_all_consumed()
    with pytest.raises(mt.NotCapturedError, match=r"ids for forward 3, got those of 3 micro-batches"):
        run("replay_forward", SCORES[0])
    slime.RoutingReplay.clear_all_forward()
    assert torch.equal(run("replay_forward", SCORES[1])[1], chosen[0])
    assert torch.equal(run("fallthrough", SCORES[1])[1], chosen[1])
    slime.RoutingReplay.clear_all()
    with pytest.raises(mt.NotCapturedError):
        run("replay_forward", SCORES[0])
    with pytest.raises(mt.InvalidArgumentError, match="expected one of fallthrough, record"):
        run("replay", SCORES[0])
    slime_on.setenv("ENABLE_ROUTING_REPLAY", "0")
    assert torch.equal(topk(SCORES[2], 2)[1], chosen[2])
    unregistered = torch.nn.Identity()
    slime.register_routing_replay(unregistered)
    assert not hasattr(unregistered, "routing_replay")


def test_rows_without_a_record_are_live_and_their_choice_is_kept() -> None:
    # case I16, I17; trap 5
    replay = miles.Replay()
    ids = native(-SCORES[0], 2)[1].short()
    ids[2] = -1
    replay.record(ids)
    live = native(SCORES[0], 2)[1]
    chosen = replay.choose("replay_forward", (6, 2), SCORES[0], lambda: live)
    wanted = ids.long()
    wanted[2] = live[2]
    assert torch.equal(chosen, wanted)
    again = replay.choose("replay_backward", (6, 2), SCORES[0], lambda: native(-SCORES[1], 2)[1])
    assert torch.equal(again, wanted)
    replay.clear()
    replay.record(ids)
    with pytest.raises(mt.NotCapturedError, match="a forward before the recomputation of micro-batch 0"):
        replay.choose("replay_backward", (6, 2), SCORES[0], lambda: live)


def test_ids_that_cannot_be_right_are_errors() -> None:
    # case I07, I22; trap 2, 22
    replay = slime.RoutingReplay()
    for rows, error, message in (
        ([[0, 1], [2, 2]], mt.InvalidArgumentError, r"different ids in a row .* \[2, 2\] in row 1"),
        ([[0, 0], [2, 1]], mt.InvalidArgumentError, "row 0"),
        ([[0, -1], [2, 1]], mt.OutOfRangeError, r"\[0, -1\] in row 0"),
        ([[0, -2], [2, 1]], mt.OutOfRangeError, "ids from 0"),
    ):
        with pytest.raises(error, match=message):
            replay.record(torch.tensor(rows))
    with pytest.raises(mt.WrongShapeError):
        replay.record(torch.tensor([1, 2]))
    with pytest.raises(mt.WrongTypeError):
        replay.record(torch.rand(2, 2))
    assert not replay.top_indices_list
    replay.record(torch.tensor([[0, 1], [2, 8]]))
    with pytest.raises(mt.OutOfRangeError, match="below 8, got 8"):
        replay.choose("replay_forward", (2, 2), SCORES[0][:2], lambda: None)
    replay.clear_forward()
    with pytest.raises(mt.WrongShapeError, match=r"\[3, 2\] as the router's, got \[2, 2\]"):
        replay.choose("replay_forward", (3, 2), SCORES[0][:3], lambda: None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ranks_rows_are_those_of_miles(seed: int) -> None:
    # case I10
    rank = Rank.random(seed)
    lengths = [length + 1 for length in rank.lengths]
    rank = Rank(lengths, rank.cp, rank.tp)
    rows = slime.prepare_routed_experts_for_routing_replay_rank(
        [ids[:-1, None, None] for ids in rank.ids],
        rank.ids,
        num_experts=2**62,
        data_pad_size_multiplier=MILES_MULTIPLE,
        sequence_parallel=True,
        allgather_cp=False,
        cp_rank=rank.cp.rank(),
        cp_size=rank.cp.size(),
        tp_rank=rank.tp.rank(),
        tp_size=rank.tp.size(),
    )
    assert np.array_equal(rows.reshape(-1).numpy(), miles_replay_rows(rank, "thd", 0))


def test_a_ranks_rows_under_allgather_are_its_tokens() -> None:
    # miles and older slime cut routes in zig-zag there.
    ids = [torch.arange(1, 40), torch.arange(100, 125)]
    given = {"data_pad_size_multiplier": 4, "sequence_parallel": False, "tp_rank": 0, "tp_size": 1}
    parts = [
        slime.prepare_routed_experts_for_routing_replay_rank(
            [one[:-1, None, None] for one in ids],
            ids,
            num_experts=200,
            allgather_cp=True,
            cp_rank=rank,
            cp_size=2,
            **given,
        )
        for rank in range(2)
    ]
    last = [one[-1].item() for one in ids]
    joined = torch.cat(ids)
    wanted = torch.where(torch.isin(joined, torch.tensor(last)), -1, joined)
    assert torch.cat(parts).reshape(-1)[: len(joined)].tolist() == wanted.tolist()
    with pytest.raises(
        mt.WrongShapeError, match=r"routes\[1\]: expected 24 rows, one less than tokens, got 25"
    ):
        slime.prepare_routed_experts_for_routing_replay_rank(
            [ids[0][:-1, None, None], ids[1][:, None, None]],
            ids,
            num_experts=200,
            allgather_cp=True,
            cp_rank=0,
            cp_size=2,
            **given,
        )


def test_a_check_of_live_and_replayed_choices() -> None:
    manager = miles.RoutingReplayManager()
    live = native(SCORES[0], 2)[1]
    manager.check_replay_result(native, SCORES[0], 2, live)
    strangers = live.clone()
    strangers[3] = native(-SCORES[0], 2)[1][3]
    with pytest.raises(mt.ConflictError, match=r"at most 1.00% .*, got 16.67%; the first is row 3"):
        manager.check_replay_result(native, SCORES[0], 2, strangers)


def test_a_fused_router_is_refused(slime_on: pytest.MonkeyPatch) -> None:
    # trap 1
    module = torch.nn.Identity()
    module.config = SimpleNamespace(moe_router_fusion=True)
    with pytest.raises(mt.UnsupportedError, match="moe_router_fusion"):
        slime.register_routing_replay(module)
    manager = miles.RoutingReplayManager()
    manager.enabled = True
    with pytest.raises(mt.UnsupportedError, match="moe_router_fusion"):
        manager.register_to_module(module, "routing_replay")


@on_ranks(1, "slime_one_rank_tests")
def test_in_models_on_one_rank(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)


@on_ranks(2, "slime_two_rank_tests")
def test_in_models_on_two_ranks(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)
