"""A rollout's step as slime's and miles' actors run it, in a Megatron model."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from megatron_cpu import dispatched, forward, gpt, gradients, mean_loss, parallel, routers, same_gradients
from megatron_ranks import SetUp, Together
from moetape.trainers import miles, slime
from moetape.trainers._slime_rows import Cut

LENGTHS = [[7, 4], [5, 6, 2]]
MULTIPLE = 4


class Slime:
    """By slime's names: stages in the environment, and one class for all routers."""

    def __init__(self) -> None:
        os.environ["ENABLE_ROUTING_REPLAY"] = "1"
        slime.RoutingReplay.all_routing_replays.clear()

    def register(self, router: Any) -> None:
        slime.register_routing_replay(router)

    def stage(self, name: str) -> None:
        os.environ["ROUTING_REPLAY_STAGE"] = name

    def fill(self, actor: Any, iterator: Any, count: int, data: dict[str, Any]) -> None:
        slime.fill_routing_replay(actor, [iterator], [count], data)

    def clear(self, forward_only: bool = False) -> None:
        replay = slime.RoutingReplay
        replay.clear_all_forward() if forward_only else replay.clear_all()


class Miles:
    """By miles' names: a manager."""

    def __init__(self) -> None:
        self.manager = miles.RoutingReplayManager()
        self.manager.enabled = True

    def register(self, router: Any) -> None:
        self.manager.register_to_module(router, "routing_replay")

    def stage(self, name: str) -> None:
        self.manager.stage = name

    def fill(self, actor: Any, iterator: Any, count: int, data: dict[str, Any]) -> None:
        key, replays = self.manager.data_key, self.manager.replays
        miles.fill_replay_data(actor, [iterator], [count], data, key, replays, None)

    def clear(self, forward_only: bool = False) -> None:
        self.manager.clear_all_forward() if forward_only else self.manager.clear_all()


class Iterator:
    """The trainers' iterator over the micro-batches of a rollout."""

    def __init__(self, rollout: dict[str, Any]) -> None:
        self.rollout, self.at = rollout, 0

    def reset(self) -> None:
        self.at = 0

    def get_next(self, keys: list[str]) -> dict[str, Any]:
        begin = sum(map(len, LENGTHS[: self.at]))
        span = slice(begin, begin + len(LENGTHS[self.at]))
        self.at += 1
        return {key: self.rollout[key][span] if key in self.rollout else None for key in keys}


class Actor:
    """As much of the trainers' Megatron actor as replay sees."""

    def __init__(self, setup: SetUp, api: Any) -> None:
        self.setup, self.api = setup, api
        self.config = setup.config()
        stages: list[int | None] = list(range(setup.vp)) if setup.vp > 1 else [None]
        self.model = [gpt(self.config, seed=3 + (stage or 0), vp_stage=stage) for stage in stages]
        for chunk in self.model:
            for router in routers(chunk).values():
                api.register(router)
        self.args = SimpleNamespace(
            data_pad_size_multiplier=MULTIPLE, sequence_parallel=setup.tp > 1, qkv_format="thd"
        )
        generator = torch.Generator().manual_seed(0)
        self.tokens = [
            [torch.randint(1, 64, (length,), generator=generator) for length in lengths]
            for lengths in LENGTHS
        ]
        self.cut = Cut.here(self.args, None)
        whole = Cut(MULTIPLE, self.cut.cp_size, self.cut.cp_rank, self.cut.tp_size)
        self.packed = [self._packed(whole, one) for one in self.tokens]

    def _packed(self, cut: Cut, tokens: list[torch.Tensor]) -> torch.Tensor:
        row_ids = cut.rows([len(one) for one in tokens]).ids
        rows = [0 if row == 0 else int(tokens[(row >> 32) - 1][row & 0xFFFFFFFF]) for row in row_ids]
        return torch.tensor(rows)[None]

    def fill(self, routes: list[np.ndarray[Any, Any]]) -> None:
        """routes: [n - 1, all layers, k] of each sequence of the rollout."""
        flat = [one for micro_batch in self.tokens for one in micro_batch]
        data = {"rollout_routed_experts": routes, "tokens": flat}
        self.api.fill(self, Iterator(data), len(LENGTHS), data)
        assert "rollout_routed_experts" not in data

    def step(self, stage: str, forward_only: bool = False) -> Any:
        """(losses, gradients); stage "replay" is replay_forward in forwards and replay_backward outside."""
        losses = []
        for chunk_at, packed in enumerate(self.packed):
            self.api.stage("replay_forward" if stage == "replay" else stage)
            with torch.set_grad_enabled(not forward_only):
                loss = mean_loss(forward(self.model[0], packed))[0]
            self.api.stage("replay_backward" if stage == "replay" else stage)
            losses.append((chunk_at, loss))
        for _, loss in [] if forward_only else losses:
            loss.backward()
        return [loss.detach() for _, loss in losses], gradients(self.model[0])


def same(left: Any, right: Any) -> bool:
    return all(map(torch.equal, left[0], right[0])) and same_gradients(left[1], right[1])


def own_routes(actor: Actor) -> list[np.ndarray[Any, Any]]:
    """What the routers choose themselves, of all ranks, as a rollout tells it: [n - 1, all layers, k]."""
    actor.api.stage("record")
    with torch.no_grad():
        for packed in actor.packed:
            forward(actor.model[0], packed)
    here = {
        layer: [one.clone() for one in router.routing_replay.top_indices_list]
        for layer, router in routers(actor.model[0]).items()
    }
    actor.api.clear()
    rows = [actor.cut.rows([len(one) for one in tokens]).ids for tokens in actor.tokens]
    told: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, (rows, here))
    width = actor.config.moe_router_topk
    routes = [
        [np.zeros((len(one), actor.config.num_layers, width), np.int32) for one in tokens]
        for tokens in actor.tokens
    ]
    for of_rank, ids in told:
        for at, row_ids in enumerate(of_rank):
            for layer, each in ids.items():
                for row, row_id in enumerate(row_ids):
                    if row_id:
                        routes[at][(row_id >> 32) - 1][row_id & 0xFFFFFFFF, layer] = each[at][row]
    return [one[:-1] for micro_batch in routes for one in micro_batch]


def prove(setup: SetUp, api: Any) -> None:
    """Own routes change no bit, in the logprob pass either; foreign ones go where they say."""
    with parallel(**setup.groups):
        actor = Actor(setup, api)
        plain = actor.step("fallthrough")
        routes = own_routes(actor)
        actor.fill(routes)
        logprobs = actor.step("replay_forward", forward_only=True)
        assert all(map(torch.equal, plain[0], logprobs[0]))
        api.clear(forward_only=True)
        assert same(plain, actor.step("replay")), "own routes changed something"
        api.clear()
        layers = sorted(routers(actor.model[0]))
        foreign = [one.copy() for one in routes]
        for one in foreign:
            one[:, layers] = (one[:, layers] + 1) % 8
        actor.fill(foreign)
        with Together([dispatched(actor.model[0])]) as maps:
            changed = actor.step("replay")
        assert not any(map(torch.equal, plain[0], changed[0])), "foreign routes changed nothing"
        names = [name for name in changed[1] if name.endswith("router.weight")]
        assert names
        assert all(changed[1][name].abs().sum() > 0 for name in names)
        _check_dispatched(actor, foreign, maps[0])
        api.clear()


def _check_dispatched(actor: Actor, routes: list[Any], maps: dict[int, Any]) -> None:
    begin = 0
    for at, tokens in enumerate(actor.tokens):
        row_ids = actor.cut.rows([len(one) for one in tokens]).ids
        for layer, each in maps.items():
            for row, row_id in enumerate(row_ids):
                sequence, position = (int(row_id) >> 32) - 1, int(row_id) & 0xFFFFFFFF
                if row_id == 0 or position == len(tokens[sequence]) - 1:
                    continue
                got = each[at][row].nonzero().flatten().tolist()
                assert got == sorted(routes[begin + sequence][position, layer].tolist()), (layer, row)
        begin += len(tokens)
