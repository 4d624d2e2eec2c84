"""slime's and miles' routing replay in Megatron models. Run by test_trainer_slime.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import moetape as mt
from megatron_cpu import forward, gpt, parallel, routers, tokens
from megatron_ranks import SetUp
from slime_story import Actor, Miles, Slime, own_routes, prove, same

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
DENSE_FIRST = {"num_layers": 3, "moe_layer_freq": [0, 1, 1]}


def test_slime() -> None:
    # case I01
    prove(SetUp(), Slime())


def test_slime_with_recomputation_and_a_dense_layer_first() -> None:
    # case I02, I17; trap 4
    prove(SetUp(changes={**DENSE_FIRST, **FULL}), Slime())


def test_miles() -> None:
    prove(SetUp(changes=FULL), Miles())


def test_sigmoid_with_a_bias() -> None:
    changes = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
    }
    prove(SetUp(changes=changes), Slime())


def test_what_the_first_pass_recorded_is_replayed() -> None:
    # R2: record in the pass over logprobs, replay in training.
    for api in (Slime(), Miles()):
        with parallel():
            actor = Actor(SetUp(changes=FULL), api)
            plain = actor.step("fallthrough")
            actor.step("record", forward_only=True)
            assert same(plain, actor.step("replay"))
            api.clear()


def refused(actor: Actor, routes: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        actor.fill(routes)
    held = [router.routing_replay for router in routers(actor.model[0]).values()]
    assert all(not one.top_indices_list for one in held), "half a rollout was given out"


def test_a_rollout_that_cannot_be_right_is_refused_as_a_whole() -> None:
    # case I07; trap 2, 12, 22
    with parallel():
        actor = Actor(SetUp(changes=DENSE_FIRST), Slime())
        good = own_routes(actor)

        def changed(sequence: int, where: Any, value: int) -> list[Any]:
            routes = [one.copy() for one in good]
            routes[sequence][where] = value
            return routes

        refused(
            actor, changed(3, (slice(None), 2), 0), mt.InvalidArgumentError, r"micro-batch 1: routes\[1\]: "
        )
        refused(actor, changed(0, (2, 1, 0), 8), mt.OutOfRangeError, r"micro-batch 0: routes\[0\]: ")
        refused(actor, changed(0, (2, 1, 0), -1), mt.OutOfRangeError, r"micro-batch 0: ")
        refused(actor, [one[:-1] for one in good], mt.WrongShapeError, r"one row less than tokens")
        actor.fill(changed(1, 0, -1))  # a missing row is no fault
        assert (routers(actor.model[0])[1].routing_replay.top_indices_list[0][7] == -1).all()


def test_routes_may_be_moetapes_own() -> None:
    with parallel():
        actor = Actor(SetUp(changes=DENSE_FIRST), Miles())
        plain = actor.step("fallthrough")
        spec = mt.RouteSpec(layers=[1, 2], top_k=2, num_experts=8, num_layers=3)
        arrays = own_routes(actor)
        sources: list[Any] = [mt.decode(one, "slime", spec=spec) for one in arrays]
        sources[0] = mt.decode_rows(mt.encode(sources[0], "sglang"), "sglang", spec=spec)
        actor.fill(sources)
        assert same(plain, actor.step("replay"))


def test_other_models_are_left_alone() -> None:
    # trap 10
    with parallel():
        api = Slime()
        actor = Actor(SetUp(), api)
        reference = gpt(actor.config, seed=9)
        for router in routers(reference).values():
            api.register(router)
        plain = forward(reference, tokens(1, 8))
        actor.fill(own_routes(actor))
        api.stage("replay_forward")
        assert torch.equal(forward(reference, tokens(1, 8)), plain)
        del routers(actor.model[0])[1].routing_replay
        with pytest.raises(
            mt.NotCapturedError, match=r"layer 1\): expected register_routing_replay, got None"
        ):
            actor.fill([None] * 5)  # type: ignore[list-item]
        api.clear()


def test_a_stage_left_on_in_recomputation_is_an_error() -> None:
    # case I03
    with parallel():
        api = Slime()
        actor = Actor(SetUp(changes=FULL), api)
        actor.fill(own_routes(actor))
        with pytest.raises(mt.ConflictError, match="expected stage replay_backward in recomputation"):
            actor.step("replay_forward")
        api.clear()
