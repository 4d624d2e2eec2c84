"""Recipes for trainers on Megatron, and what these trainers' own code does. Run by test_recipes.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from megatron_cpu import config, dispatched, forward, gpt, map_of, parallel, step, tokens
from moetape.trainers.megatron import attach
from peer_code import Group, peer_code, stub_modules
from peer_ranks import Rank
from peer_skyrl import PACKAGE, ROOM, align_code, layout_code, packed_code
from recipe_code import recipe, shares
from test_peers_miles import miles_replay_rows

LENGTH, NUM_EXPERTS = 16, 128
SIZES = (1, 2, 4)


def marks(batch: int) -> list[np.ndarray[Any, Any]]:
    """For every token of a micro-batch two experts of its own, [n - 1 rows, layers, k] of each sequence."""
    token = np.arange(batch * LENGTH).reshape(batch, LENGTH)
    ids = np.stack([2 * token, 2 * token + 1], axis=-1)[:, :, None].repeat(2, axis=2).astype(np.int32)
    return list(ids)


def share(maps: dict[int, list[torch.Tensor]], batch: int) -> str:
    """Of rows that got another token's experts; the last token of a sequence has no routes."""
    wrong = []
    wanted = np.stack(marks(batch))
    for layer, [seen] in maps.items():
        own = map_of(wanted[:, :, layer].swapaxes(0, 1).reshape(-1, 2), NUM_EXPERTS)
        wrong.append((seen != own).any(dim=1))
    return f"{float(torch.stack(wrong).float().mean()):.2%}".replace("%", " %")


def model_of(**changes: Any) -> Any:
    return gpt(config(num_moe_experts=NUM_EXPERTS, **changes))


def skyrl(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """SkyRL's own code, and its modules for who imports them."""
    align = align_code()
    packed = packed_code()
    layout = layout_code(align)
    replay = peer_code(
        PACKAGE,
        ROOM + "utils/replay_utils.py",
        "setup_per_microbatch_replay_forward",
        "clear_router_replay",
        "replay_padding_row",
        "_split_replay_indices",
        "_get_current_pp_stage_layer_range",
        "_get_local_router_layer_indices",
        "scatter_router_padding_mask_for_model",
        torch=torch,
        PackedTensor=packed.PackedTensor,
        align_token_metadata=layout.align_token_metadata,
        align_packed_token_metadata=layout.align_packed_token_metadata,
    )
    names = ROOM.rstrip("/").replace("/", ".")
    stub_modules(
        monkeypatch,
        {
            f"{names}.distributed.megatron.token_metadata": layout,
            f"{names}.utils.packed_tensor": packed,
        },
    )
    return SimpleNamespace(**vars(packed), **vars(layout), **vars(replay))


def swift() -> SimpleNamespace:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe.router_replay import RouterReplay
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    split = peer_code(
        "mcore-bridge-1.6.5",
        "mcore_bridge/utils/megatron_utils.py",
        "split_cp_inputs",
        torch=torch,
        mpu=parallel_state,
    )
    replay = peer_code(
        "ms-swift-4.6.0",
        "swift/megatron/utils/router_replay_utils.py",
        "is_moe_layer",
        "get_moe_num_layers_to_build",
        "get_local_layer_range",
        "get_local_topk_idx_for_current_rank",
        "set_router_replay_data",
        torch=torch,
        mpu=parallel_state,
        device_name="cpu",
        RouterReplay=RouterReplay,
        split_cp_inputs=split.split_cp_inputs,
        scatter_to_sequence_parallel_region=tensor_parallel.scatter_to_sequence_parallel_region,
        get_num_layers_to_build=get_num_layers_to_build,
        get_transformer_layer_offset=get_transformer_layer_offset,
    )
    return SimpleNamespace(**vars(split), **vars(replay))


def theirs(batch: int, give: Any) -> str:
    """The share with Megatron's own RouterReplay, filled by a trainer's function."""
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    RouterReplay.clear_global_router_replay_instances()
    model = model_of(moe_enable_routing_replay=True)
    give(model)
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    with dispatched(model) as maps, torch.no_grad():
        forward(model, tokens(batch, LENGTH))
    RouterReplay.clear_global_indices()
    RouterReplay.clear_global_router_replay_action()
    RouterReplay.clear_global_router_replay_instances()
    return share(maps, batch)


def mine(batch: int, micro_batch: Any) -> str:
    """The share by a recipe; here every token but a sequence's last has routes."""
    model = model_of()
    session = attach(model)
    given = micro_batch(session)
    with (
        session.forward_step(step, [given], pass_="logprob") as replayed,
        dispatched(model) as maps,
        torch.no_grad(),
    ):
        replayed(iter([tokens(batch, LENGTH)]), model)
    assert replayed.counts.replayed == batch * LENGTH
    session.detach()
    return share(maps, batch)


def bodies(batch: int) -> list[str]:
    spec = mt.RouteSpec(layers=[0, 1], top_k=2, num_experts=NUM_EXPERTS)
    return [mt.encode(mt.Routes.from_ids(spec, ids), "skyrl") for ids in marks(batch)]


def test_skyrl() -> None:
    # trap 7
    with pytest.MonkeyPatch.context() as monkeypatch, parallel():
        api = skyrl(monkeypatch)
        written = recipe("SkyRL")
        found: list[list[str]] = [[], []]
        for batch in SIZES:
            mask = torch.ones(batch, LENGTH, dtype=torch.bool)
            layout = api.build_token_metadata_layout(mask, "cpu", packed=False, fp8_enabled=False)
            routes = api.PackedTensor.from_segments([torch.from_numpy(ids) for ids in marks(batch)])

            def give(model: Any, routes: Any = routes, mask: Any = mask, layout: Any = layout) -> None:
                api.setup_per_microbatch_replay_forward(routes, ~mask, mask, model, model.config, layout)

            found[0].append(theirs(batch, give))
            found[1].append(
                mine(
                    batch,
                    lambda session, batch=batch, layout=layout: written.micro_batch(
                        session, bodies(batch), layout
                    ),
                )
            )
    assert found[0] == shares("SkyRL 0.4.0")
    assert found[1] == shares("moetape, the recipes")


def test_skyrl_packed_and_padded_on_the_left() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, parallel():
        api = skyrl(monkeypatch)
        mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
        layout = api.build_token_metadata_layout(mask, "cpu", packed=True, fp8_enabled=False)
        session = attach(model_of())
        given = recipe("SkyRL").micro_batch(session, bodies(2), layout)
        wanted = [mt.replay.row_ids(0, range(3)), mt.replay.row_ids(1, range(5))]
        assert given.row_ids[0].tolist() == np.concatenate(wanted).tolist()
        session.detach()


def samples(batch: int, surplus: int) -> list[Any]:
    return [
        SimpleNamespace(routed_experts=ids[: LENGTH - 1 + surplus], encoded={"length": LENGTH})
        for ids in marks(batch)
    ]


def test_swift() -> None:
    # trap 7
    with pytest.MonkeyPatch.context() as monkeypatch, parallel():
        api = swift()
        stub_modules(monkeypatch, {"mcore_bridge": SimpleNamespace(split_cp_inputs=api.split_cp_inputs)})
        written = recipe("ms-swift")
        found: list[str] = []
        for batch in SIZES:
            routed = torch.from_numpy(np.stack(marks(batch))).long()

            def give(model: Any, routed: Any = routed) -> None:
                local = api.get_local_topk_idx_for_current_rank(routed, model.config)
                api.set_router_replay_data(local, model.config)

            found.append(theirs(batch, give))
            model = model_of()
            session = attach(model)
            given = written.micro_batch(session, samples(batch, surplus=batch % 2), LENGTH)
            with (
                session.forward_step(step, [given], pass_="logprob") as replayed,
                dispatched(model) as maps,
                torch.no_grad(),
            ):
                replayed(iter([tokens(batch, LENGTH)]), model)
            rows = torch.arange(batch * LENGTH) // batch < LENGTH - 1  # s * batch + b; the last was not fed
            own = np.stack(marks(batch)).swapaxes(0, 1).reshape(-1, 2, 2)
            for layer, [seen] in maps.items():
                assert torch.equal(seen[rows], map_of(own[:, layer], NUM_EXPERTS)[rows])
            packed = SimpleNamespace(cu_seqlens_q=torch.arange(batch + 1) * LENGTH)
            given = written.micro_batch(session, samples(batch, 0), None, packed)
            assert given.row_ids.shape == (1, batch * LENGTH)
            session.detach()
    assert found == shares("ms-swift 4.6.0")


def test_miles() -> None:
    # trap 7
    found = []
    with parallel():
        for batch in SIZES:
            rank = Rank([LENGTH + 1] * batch, Group(1, 0), Group(1, 0))
            # One token more than marks, since miles has none for the last; its column is cut below.
            row_ids = miles_replay_rows(rank, "bshd", LENGTH + 1).reshape(batch, LENGTH + 1)[:, :LENGTH]
            where = torch.from_numpy(row_ids.reshape(-1))
            ids = torch.from_numpy(np.stack(marks(batch)))[(where >> 32) - 1, where & 0xFFFFFFFF]

            def give(model: Any, ids: Any = ids) -> None:
                from megatron.core.transformer.moe.router_replay import RouterReplay

                RouterReplay.set_replay_data([ids[:, layer].long() for layer in range(2)])

            found.append(theirs(batch, give))
    assert found == shares("miles-rl 0.0.2")


def test_areal_and_nemo_rl_pack() -> None:
    # case C04; trap 6
    with parallel():
        model = model_of()
        session = attach(model)
        spec = session.spec
        routes = [mt.Routes.from_ids(spec, ids[:-1]) for ids in marks(2)]
        responses = [
            [SimpleNamespace(routed_experts=ids[:stop].reshape(stop, -1)) for stop in (6, LENGTH - 1)]
            for ids in marks(2)
        ]
        given = recipe("AReaL").micro_batch(session, responses, [LENGTH, LENGTH])
        assert given.routes == routes
        nemo = recipe("NeMo-RL")
        texts = [nemo.envelope(one) for one in routes]
        given = nemo.micro_batch(session, texts, [LENGTH, 9])
        assert given.routes == [routes[0], routes[1].slice(0, 8)]
        assert json.loads(json.dumps(texts)) == texts
        session.detach()
