"""Replay in Megatron models on one rank. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import moetape as mt
from megatron_cpu import (
    config,
    dispatched,
    forward,
    gpt,
    gradients,
    map_of,
    mean_loss,
    parallel,
    routers,
    step,
    tokens,
)
from megatron_story import BATCH, FULL, LENGTH, SELECTIVE, foreign, ids_of, routes_of, rows, run, same, whole
from moetape.trainers import megatron
from moetape.trainers.megatron import MicroBatchRoutes, ReplayPolicy, attach


def test_own_routes_are_the_same_bits_and_foreign_ones_are_not() -> None:
    # case I01
    for changes in ({}, FULL, SELECTIVE, {"moe_layer_freq": [0, 1], "num_layers": 2}):
        with parallel():
            model = gpt(config(**changes))
            batch = tokens(BATCH, LENGTH)
            ids = ids_of(model, batch)
            plain = run(model, [batch])
            session = attach(model)
            with session.forward_step(step, [whole(session, ids)]) as replayed:
                again = run(model, [batch], replayed)
            assert same(plain, again), changes
            assert replayed.counts.replayed == BATCH * LENGTH
            other = foreign(ids)
            with session.forward_step(step, [whole(session, other)]) as replayed, dispatched(model) as maps:
                changed = run(model, [batch], replayed)
            assert not torch.equal(plain[0][0], changed[0][0])
            for column, layer in enumerate(session.spec.layers):
                assert all(torch.equal(one, map_of(rows(other, column))) for one in maps[layer])
                assert len(maps[layer]) == (2 if "recompute_granularity" in changes else 1)
                weight = f"decoder.layers.{layer}.mlp.router.weight"
                assert changed[1][weight].abs().sum() > 0
            session.detach()
            assert same(plain, run(model, [batch]))


def test_micro_batches_keep_their_ids_under_every_schedule() -> None:
    # case I02, I03, I04
    for changes in ({}, FULL, SELECTIVE):
        with parallel():
            model = gpt(config(**changes))
            batches = [tokens(BATCH, LENGTH, seed) for seed in range(3)]
            ids = [foreign(ids_of(model, batch)) for batch in batches]
            session = attach(model)
            alone = []
            for batch, one in zip(batches, ids, strict=True):
                with session.forward_step(step, [whole(session, one)]) as replayed:
                    alone.append(run(model, [batch], replayed))
            for order in ("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B2 B0 B1", "F0 B0 F1 F2 B2 B1", "F0 F1 B1 F2 B0 B2"):
                with session.forward_step(step, [whole(session, one) for one in ids]) as replayed:
                    losses, found = run(model, batches, replayed, order)
                assert all(map(torch.equal, losses, [one[0][0] for one in alone]))
                backwards = [int(word[1]) for word in order.split() if word[0] == "B"]
                for name, gradient in found.items():
                    expected = alone[backwards[0]][1][name].clone()
                    for at in backwards[1:]:
                        expected += alone[at][1][name]
                    assert torch.allclose(gradient, expected, rtol=1e-5, atol=1e-7), (changes, order, name)
            assert not session.chunks[0].flights


def test_live_rows_are_frozen_for_recomputing() -> None:
    # case I16, I17, I22; trap 5
    for changes in (FULL, SELECTIVE):
        with parallel():
            model = gpt(config(**changes))
            batch = tokens(BATCH, LENGTH)
            own = ids_of(model, batch)
            session = attach(model)
            valid = np.ones(LENGTH, bool)
            valid[[2, 5]] = False
            routes = routes_of(session, foreign(own), valid=valid)
            given = session.padded(routes, [LENGTH] * BATCH, LENGTH)
            with session.forward_step(step, [given]) as replayed, dispatched(model) as maps:
                output, _ = replayed(iter([batch]), model)
                chosen = {layer: maps[layer][0] for layer in maps}
                for router in routers(model).values():
                    router.weight.data.mul_(
                        -1
                    )  # what recomputing would choose of itself now is something else
                output.mean().backward()
            assert replayed.counts == megatron.Counts(replayed=12, missing=4)
            for layer in maps:
                assert len(maps[layer]) == 2
                assert torch.equal(maps[layer][1], chosen[layer])
            first = map_of(rows(own, 0))
            missing = np.repeat(~valid, BATCH)
            assert torch.equal(chosen[0][missing], first[missing])
            assert torch.equal(chosen[0][~missing], map_of(rows(foreign(own), 0))[~missing])


def test_short_padded_and_late_routes_are_placed_by_position() -> None:
    # case C01, C04; trap 18
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        other = foreign(ids_of(model, batch))
        session = attach(model)
        routes = [
            mt.Routes.from_ids(session.spec, other[0, :5]),  # of 6 tokens, the last was never fed
            mt.Routes.from_ids(session.spec, other[1, 3:7], start=3),  # of 8; 0 to 2 are elsewhere
        ]
        given = session.padded(routes, [6, 8], LENGTH)
        with session.forward_step(step, [given]) as replayed, dispatched(model) as maps:
            replayed(iter([batch]), model)[0].mean().backward()
        assert replayed.counts == megatron.Counts(replayed=9, missing=3, beyond=2, padding=2)
        wanted, own = map_of(rows(other, 0)), map_of(rows(ids_of(model, batch), 0))
        covered = [[p < 5 for p in range(LENGTH)], [3 <= p < 7 for p in range(LENGTH)]]
        for position in range(LENGTH):
            for sequence in range(BATCH):
                row = position * BATCH + sequence
                expected = wanted if covered[sequence][position] else own
                assert torch.equal(maps[0][0][row], expected[row])


def test_packed_sequences() -> None:
    with parallel():
        model = gpt(config())
        batch = tokens(1, 8)
        other = foreign(ids_of(model, batch))
        session = attach(model)
        routes = [
            mt.Routes.from_ids(session.spec, other[0, :3]),
            mt.Routes.from_ids(session.spec, other[0, 3:8]),
        ]
        given = session.packed(routes, [3, 5])
        assert given.row_ids.shape == (8,)
        with session.forward_step(step, [given]) as replayed, dispatched(model) as maps:
            replayed(iter([batch]), model)
        assert torch.equal(maps[0][0], map_of(rows(other, 0)))
        assert replayed.counts.replayed == 8


def test_passes_are_told_apart_on_the_same_modules() -> None:
    # trap 19
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        other = foreign(ids_of(model, batch))
        session = attach(model)
        plain, replaying = forward(model, batch).detach(), {}
        for pass_ in ("train", "logprob", "reference"):
            with torch.no_grad(), session.forward_step(step, [whole(session, other)], pass_) as replayed:
                replaying[pass_] = not torch.equal(replayed(iter([batch]), model)[0], plain)
            assert not session.chunks[0].flights  # without a graph nothing waits
        assert replaying == {"train": True, "logprob": True, "reference": False}
        session.policy = ReplayPolicy(passes=["reference"])
        for pass_, expected in (("train", False), ("reference", True)):
            with torch.no_grad(), session.forward_step(step, [whole(session, other)], pass_) as replayed:
                assert torch.equal(replayed(iter([batch]), model)[0], plain) is not expected
        with pytest.raises(mt.InvalidArgumentError, match="pass_: expected one of 'train'"):
            session.forward_step(step, [], "valid")  # type: ignore[arg-type]


def test_plain_forwards_stay_plain_while_micro_batches_wait() -> None:
    for changes in ({}, FULL, SELECTIVE):
        with parallel():
            model, other_model = gpt(config(**changes)), gpt(config(**changes), seed=9)
            batch = tokens(BATCH, LENGTH)
            other = foreign(ids_of(model, batch))
            plain, elsewhere = run(model, [batch]), run(other_model, [batch])
            session = attach(model)
            with session.forward_step(step, [whole(session, other)]) as replayed:
                waiting, _ = replayed(iter([batch]), model)
                evaluation = forward(model, batch).mean()
                evaluation.backward()
                assert same(([evaluation], gradients(model)), plain)
                assert same(run(other_model, [batch]), elsewhere)
                waiting.mean().backward()
            alone = gradients(model)
            with session.forward_step(step, [whole(session, other)]) as replayed:
                assert same(run(model, [batch], replayed), ([waiting.mean()], alone))


def test_a_model_inside_the_step_of_another_is_live() -> None:
    # case G06
    with parallel():
        model, reference = gpt(config(**FULL)), gpt(config(**FULL), seed=9)
        batch = tokens(BATCH, LENGTH)
        plain = run(reference, [batch])
        session, second = attach(model), attach(reference)
        seen = []

        def both(data: Any, which: Any) -> Any:
            seen.append(run(reference, [batch]))
            return step(data, which)

        with session.forward_step(both, [whole(session, foreign(ids_of(model, batch)))]) as replayed:
            replayed(iter([batch]), model)[0].mean().backward()
        assert same(seen[0], plain)
        assert session is not second
        second.detach()
        with session.forward_step(step, [whole(session, foreign(ids_of(model, batch)))]) as replayed:
            replayed(iter([batch]), model)
        assert replayed.counts.replayed == BATCH * LENGTH


def test_ids_live_until_the_backward_ended_or_the_graph_is_gone() -> None:
    # trap 4
    with parallel():
        model = gpt(config(**FULL))
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        given = whole(session, ids_of(model, batch))
        for by in ("backward", "graph"):
            with session.forward_step(step, [given]) as replayed:
                output, loss = replayed(iter([batch]), model)
            [micro_batch] = session.chunks[0].flights.live
            kept = [weakref.ref(one) for one in micro_batch._ids.values()]
            del micro_batch
            with pytest.raises(mt.InvalidArgumentError, match="got 1 micro-batches that wait"):
                session.detach()
            if by == "backward":
                output.mean().backward()
            del output, loss
            gc.collect()
            assert not session.chunks[0].flights
            assert all(one() is None for one in kept)
        session.detach()


def test_the_second_backward_of_a_kept_graph_sees_the_same_ids() -> None:
    # case I03
    with parallel():
        model = gpt(config(**FULL))
        batch = tokens(BATCH, LENGTH)
        session = attach(model)

        def logits(data: Any, which: Any) -> Any:  # Megatron's loss has one backward only
            positions, hidden = (
                torch.arange(LENGTH).expand(BATCH, LENGTH),
                torch.zeros(1, 1, 1, 1, dtype=torch.bool),
            )
            return which(next(data), positions, hidden), None

        with session.forward_step(logits, [whole(session, foreign(ids_of(model, batch)))]) as replayed:
            loss = replayed(iter([batch]), model)[0].square().mean()
            with dispatched(model) as maps:
                loss.backward(retain_graph=True)
                loss.backward()
        assert all(torch.equal(one, seen[0]) for seen in maps.values() for one in seen)
        assert not session.chunks[0].flights


def test_every_router_fires_once_and_is_named_if_not() -> None:
    # case H10
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        given = whole(session, ids_of(model, batch))
        silent = model.decoder.layers[1].mlp.router
        port, silent.router_replay = silent.router_replay, None
        with pytest.raises(
            mt.NotCapturedError, match=r"got nothing of decoder.layers.1.mlp.router \(layer 1\)"
        ):
            session.forward_step(step, [given])(iter([batch]), model)
        silent.router_replay = port

        def twice(data: Any, which: Any) -> Any:
            forward(which, batch)
            return step(data, which)

        with pytest.raises(
            mt.AlreadyCapturedError, match=r"decoder.layers.0.mlp.router \(layer 0\) fired twice"
        ):
            session.forward_step(twice, [given])(iter([batch]), model)
        with pytest.raises(mt.WrongShapeError, match=r"expected ids \[rows, k\] = \[16, 2\].*got \[8, 2\]"):
            session.forward_step(step, [given])(iter([batch[:1]]), model)
        with (
            pytest.raises(
                mt.NotCapturedError, match="expected the schedule to run 2 micro-batches in chunk 0, got 1"
            ),
            session.forward_step(step, [given, given]) as replayed,
        ):
            replayed(iter([batch]), model)
        replayed = session.forward_step(step, [given])
        replayed(iter([batch]), model)
        with pytest.raises(mt.OutOfRangeError, match="expected 1 micro-batches in chunk 0"):
            replayed(iter([batch]), model)
        assert not session.chunks[0].flights
        with session.forward_step(step, [given]) as replayed:  # none of this broke the session
            assert replayed(iter([batch]), model)[0].requires_grad


def test_an_error_in_the_step_leaves_nothing_behind() -> None:
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        plain = run(model, [batch])
        session = attach(model)

        def broken(data: Any, which: Any) -> Any:
            step(data, which)
            raise ZeroDivisionError

        with (
            pytest.raises(ZeroDivisionError),
            session.forward_step(broken, [whole(session, foreign(ids_of(model, batch)))]) as replayed,
        ):
            replayed(iter([batch]), model)
        assert not session.chunks[0].flights
        assert same(run(model, [batch]), plain)


def test_checkpoints_that_are_not_megatrons_are_refused() -> None:
    # trap 5
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        layer = model.decoder.layers[1]
        plain = layer.forward

        def by_hand(hidden_states: Any, **rest: Any) -> Any:
            return torch_checkpoint(lambda hidden: plain(hidden, **rest), hidden_states, use_reentrant=False)

        layer.forward = by_hand
        with (
            pytest.raises(
                mt.UnsupportedError, match=r"decoder.layers.1.mlp.router is recomputed by a checkpoint"
            ),
            session.forward_step(step, [whole(session, ids_of(model, batch))]) as replayed,
        ):
            replayed(iter([batch]), model)[0].mean().backward()
        del replayed
        gc.collect()
        session.detach()  # torch keeps the layer of a recomputation that failed


def test_detaching_leaves_the_model_as_it_was() -> None:
    # case G05
    from megatron.core.tensor_parallel.random import CheckpointFunction

    gc.collect()
    untouched = CheckpointFunction.__dict__["forward"]
    with parallel():
        model = gpt(config())
        before = [dict(module.__dict__) for module in model.modules()]
        session = attach(model)
        assert attach(model) is session
        assert CheckpointFunction.__dict__["forward"] is not untouched
        session.detach()
        after = [dict(module.__dict__) for module in model.modules()]
        assert [one.keys() for one in after] == [one.keys() for one in before]
        assert all(router.router_replay is None for router in routers(model).values())
        assert CheckpointFunction.__dict__["forward"] is untouched
        with pytest.raises(mt.ClosedError, match="detached"):
            session.forward_step(step, [])
        kept = weakref.ref(attach(model))
        assert kept() is not None  # the model keeps it
        gone = weakref.ref(model)
        del model, before, after
        gc.collect()
        assert gone() is None
        assert kept() is None
        assert CheckpointFunction.__dict__["forward"] is untouched


def test_megatrons_own_replay_may_be_built_in() -> None:
    # case G04, G06; trap 10
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    with parallel():
        orphan, model = (gpt(config(moe_enable_routing_replay=True)) for _ in range(2))
        batch = tokens(BATCH, LENGTH)
        own = {layer: router.router_replay for layer, router in routers(model).items()}
        session = attach(model)
        with session.forward_step(step, [whole(session, foreign(ids_of(model, batch)))]) as replayed:
            replayed(iter([batch]), model)
        assert replayed.counts.replayed == BATCH * LENGTH
        session.detach()
        assert own == {layer: router.router_replay for layer, router in routers(model).items()}
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        with pytest.raises(mt.ConflictError, match="expected megatron's own RouterReplay at rest"):
            attach(model)
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_router_replay_instances()
        del orphan


def test_layers_of_multi_token_prediction_are_routed_live() -> None:
    # case G09
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec

    with parallel():
        settings = config(mtp_num_layers=1, moe_layer_freq=[0, 1])
        block = get_gpt_decoder_block_spec(settings, use_transformer_engine=False)
        mtp = get_gpt_mtp_block_spec(settings, block.layer_specs[-1], use_transformer_engine=False)
        model = gpt(settings, mtp_block_spec=mtp)
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        session = attach(model)
        assert session.layers == [1]
        assert session.spec.num_layers == 2
        for ids in (own, foreign(own)):
            with session.forward_step(step, [whole(session, ids)]) as replayed, dispatched(model) as maps:
                replayed(iter([batch]), model)[0].mean().backward()
            assert any(torch.equal(one, map_of(rows(ids, 0))) for one in maps[1])
        predicting = [
            one for name, one in model.named_modules() if "mtp" in name and hasattr(one, "router_replay")
        ]
        assert [one.router_replay for one in predicting] == [None]


def test_layers_left_out_of_the_record_are_live() -> None:
    # case G12
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        session = attach(model, excluded={0: "hash"})
        assert session.spec.excluded == {0: "hash"}
        assert session.layers == [1]
        replayed = session.forward_step(step, [whole(session, foreign(own[:, :, 1:]))])
        with dispatched(model) as maps:
            replayed(iter([batch]), model)
        assert torch.equal(maps[0][0], map_of(rows(own, 0)))
        assert torch.equal(maps[1][0], map_of(rows(foreign(own[:, :, 1:]), 0)))


def test_foreign_ids_outside_of_the_groups_are_taken_as_they_are() -> None:
    # case G15; trap 13, 14
    for changes in (
        {"moe_router_pre_softmax": True},
        {},
        {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    ):
        with parallel():
            model = gpt(config(moe_router_num_groups=4, moe_router_group_topk=1, **changes))
            batch = tokens(BATCH, LENGTH)
            own = ids_of(model, batch)
            assert (own // 2).min(axis=-1).tolist() == (own // 2).max(axis=-1).tolist()  # one group a row
            session = attach(model)
            other = np.stack([own[..., 0], (own[..., 0] + 3) % 8], axis=-1)  # two groups a row
            with session.forward_step(step, [whole(session, other)]) as replayed, dispatched(model) as maps:
                found = run(model, [batch], replayed)
            assert torch.equal(maps[1][0], map_of(rows(other, 1)))
            assert found[1]["decoder.layers.1.mlp.router.weight"].isfinite().all()
            assert found[1]["decoder.layers.1.mlp.router.weight"].abs().sum() > 0


def test_weights_are_those_of_the_live_scores_without_the_bias() -> None:
    # case I13, I14
    with parallel():
        settings = config(
            moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True,
            moe_router_topk_scaling_factor=2.5,
        )
        model = gpt(settings)
        router = model.decoder.layers[0].mlp.router
        router.expert_bias.copy_(torch.linspace(-3, 3, 8))
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        session = attach(model)
        other = foreign(own)
        seen: list[Any] = []
        hook = router.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
        with session.forward_step(step, [whole(session, other)]) as replayed:
            replayed(iter([batch]), model)
        hook.remove()
        [(hidden, (probs, _))] = seen
        scores = torch.sigmoid(hidden.reshape(-1, 16) @ router.weight.T)
        wanted = scores.gather(1, torch.from_numpy(rows(other, 0)))
        wanted = 2.5 * wanted / wanted.sum(dim=1, keepdim=True)
        assert torch.allclose(probs.gather(1, torch.from_numpy(rows(other, 0))), wanted, rtol=1e-5)


def test_wide_ids_are_kept_exactly() -> None:
    # case D12, D07; trap 8, 16
    for num_experts in (256, 300):
        with parallel():
            model = gpt(config(num_moe_experts=num_experts, moe_ffn_hidden_size=4))
            batch = tokens(1, 4)
            session = attach(model)
            ids = np.full((1, 4, 2, 2), num_experts - 1)
            ids[..., 1] = np.arange(4)[None, :, None]
            given = whole(session, ids)
            with session.forward_step(step, [given]) as replayed, dispatched(model) as maps:
                replayed(iter([batch]), model)[0].mean().backward()
            assert torch.equal(maps[0][0], map_of(rows(ids, 0), num_experts))


def test_columns_stay_in_the_recorded_order() -> None:
    # case I12; trap 15: whoever sorts ids adds bfloat16 products in another order.
    for changes in ({}, FULL):
        with parallel():
            model = gpt(config(**changes))
            batch = tokens(BATCH, LENGTH)
            session = attach(model)
            ids = np.sort(foreign(ids_of(model, batch)), axis=-1)
            ids[:, ::2] = ids[:, ::2, :, ::-1]  # some rows ascend, some descend
            seen: list[torch.Tensor] = []
            port = model.decoder.layers[1].mlp.router.router_replay
            plain = port.get_replay_topk

            def tap(*args: Any, plain: Any = plain, seen: Any = seen, **rest: Any) -> Any:
                values, chosen = plain(*args, **rest)
                seen.append(chosen)
                return values, chosen

            port.get_replay_topk = tap
            for grad in (True, False):
                with (
                    session.forward_step(step, [whole(session, ids)]) as replayed,
                    torch.set_grad_enabled(grad),
                ):
                    output = replayed(iter([batch]), model)[0].mean()
                    if grad:
                        output.backward()
            assert len(seen) == (3 if changes else 2)
            assert all(torch.equal(one, torch.from_numpy(rows(ids, 1).copy())) for one in seen)


def test_many_steps_leave_nothing() -> None:
    # case G05, K08; trap 4
    with parallel():
        model = gpt(config(**FULL))
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        given = whole(session, ids_of(model, batch))

        def live_objects() -> int:
            gc.collect()
            return len(gc.get_objects())

        counts = []
        for number in range(61):
            with session.forward_step(step, [given]) as replayed:
                output = replayed(iter([batch]), model)[0].mean()
                if number % 3:
                    output.backward()  # the others are thrown away with their graph
            del replayed, output
            model.zero_grad(set_to_none=True)
            if number in (20, 40, 60):
                counts.append(live_objects())
        assert not session.chunks[0].flights
        assert counts[2] <= counts[1] + 20  # a micro-batch a step would be hundreds


def test_the_rows_that_routers_see() -> None:
    # trap 7
    with parallel():
        model = gpt(config())
        session = attach(model)
        given = session.padded([], [3, 2], 4)
        assert session.local_rows(given.row_ids).tolist() == [
            (1 << 32) | 0, (2 << 32) | 0, (1 << 32) | 1, (2 << 32) | 1, (1 << 32) | 2, 0, 0, 0,
        ]  # fmt: skip


def test_chunks_of_one_model_on_one_rank() -> None:
    with parallel():
        chunks = [gpt(config(), seed=seed) for seed in (3, 4)]
        for number, router in routers(chunks[1]).items():
            router.layer_number = number + 3
        spec = mt.RouteSpec(range(4), top_k=2, num_experts=8)
        for chunk in chunks:
            chunk.config.pipeline_model_parallel_size = 2
        session = attach(chunks, spec=spec)
        assert [list(chunk.names) for chunk in session.chunks] == [[0, 1], [2, 3]]
        batch = tokens(BATCH, LENGTH)
        own = [ids_of(chunk, batch) for chunk in chunks]
        plain = [run(chunk, [batch]) for chunk in chunks]
        given = whole(session, np.concatenate(own, axis=2))
        with session.forward_step(step, [given]) as replayed:
            assert all(
                same(run(chunk, [batch], replayed), one) for chunk, one in zip(chunks, plain, strict=True)
            )
        with pytest.raises(mt.InvalidArgumentError, match="chunks that are attached, got 1 others"):
            attach(chunks[0])
        replayed = session.forward_step(step, [given])
        with pytest.raises(mt.InvalidArgumentError, match="expected one of the session's 2 chunks"):
            replayed(iter([batch]), gpt(config()))


def test_wrapped_models_are_the_same_model() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **rest: Any) -> Any:
            return self.module(*args, **rest)

    with parallel():
        model = Wrapper(Wrapper(gpt(config())))
        session = attach(model)
        assert attach(model.module.module) is session
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model.module.module, batch)
        with session.forward_step(step, [whole(session, own)]) as replayed:
            replayed(iter([batch]), model)
        assert replayed.counts.replayed == BATCH * LENGTH


def test_tokens_prove_the_alignment() -> None:
    # case C11
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        own = ids_of(model, batch)
        routes = [
            mt.Routes.from_ids(session.spec, ids, tokens=one.numpy().astype(np.int32))
            for ids, one in zip(own, batch, strict=True)
        ]
        given = session.padded(routes, [LENGTH] * BATCH, LENGTH)
        right = MicroBatchRoutes(routes, given.row_ids, tokens=batch)
        with session.forward_step(step, [right]) as replayed:
            replayed(iter([batch]), model)
        shifted = MicroBatchRoutes(routes, given.row_ids, tokens=batch.roll(1, dims=1))
        with pytest.raises(mt.ConflictError, match=r"micro-batch 1: routes\[0\]"):
            session.forward_step(step, [right, shifted])


def test_the_examples_of_the_page_run() -> None:
    from test_docs import code_blocks

    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        positions, hidden = (
            torch.arange(LENGTH).expand(BATCH, LENGTH),
            torch.ones(1, 1, LENGTH, LENGTH).tril() < 0.5,
        )
        data = {"tokens": batch, "labels": batch, "position_ids": positions, "attention_mask": hidden}
        names: dict[str, Any] = {
            "torch": torch,
            "model": model,
            "optimizer": optimizer,
            "loss_func": mean_loss,
        }
        names["cut"] = lambda batch: batch  # one rank
        for example in code_blocks("docs/megatron.md", "python"):
            exec(compile(example, "docs/megatron.md", "exec"), names)
        session = names["session"]
        routes = routes_of(session, own)
        losses = [
            names["train_step"]([data] * 2, [routes] * 2, [[LENGTH] * BATCH] * 2, LENGTH) for _ in range(2)
        ]
        assert losses[1][0]["loss"] < losses[0][0]["loss"]
        given = whole(session, own)
        cut = names["micro_batch"](batch, routes)
        assert np.array_equal(cut.row_ids, given.row_ids)
        assert torch.equal(cut.tokens, batch)


def test_what_only_the_newer_version_has() -> None:
    if not hasattr(config(), "moe_router_quantile_balancing_ema"):
        return
    for changes in ({"moe_router_score_function": "sqrtsoftplus"}, {"moe_grouped_gemm": True}):
        with parallel():
            model = gpt(config(**changes, **FULL))
            batch = tokens(BATCH, LENGTH)
            own = ids_of(model, batch)
            plain = run(model, [batch])
            session = attach(model)
            with session.forward_step(step, [whole(session, own)]) as replayed:
                assert same(run(model, [batch], replayed), plain)
            with session.forward_step(step, [whole(session, foreign(own))]) as replayed:
                assert not same(run(model, [batch], replayed), plain)
