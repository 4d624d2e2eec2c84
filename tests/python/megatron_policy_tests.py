"""Each field of ReplayPolicy, by what it changes. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from megatron_cpu import config, dispatched, forward, gpt, map_of, parallel, step, tokens
from megatron_story import BATCH, FULL, LENGTH, foreign, ids_of, routes_of, rows, run, same, whole
from moetape.trainers.megatron import Counts, MicroBatchRoutes, ReplayPolicy, attach


def with_gap(session: Any, ids: Any, missing: tuple[int, ...] = (3,)) -> MicroBatchRoutes:
    """Sequence 1 misses some rows; both end one token before their sequence."""
    valid = np.ones(LENGTH - 1, bool)
    valid[list(missing)] = False
    routes = [
        mt.Routes.from_ids(session.spec, ids[0, : LENGTH - 1]),
        mt.Routes.from_ids(session.spec, ids[1, : LENGTH - 1], valid=valid),
    ]
    return session.padded(routes, [LENGTH, LENGTH], LENGTH + 2)


def test_missing_rows_are_live_filled_or_an_error() -> None:
    # case I16, D10; trap 3
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH + 2)
        own = ids_of(model, batch)
        session = attach(model)
        other = foreign(own)
        given = with_gap(session, other)
        maps: dict[str, torch.Tensor] = {}
        for missing in ("live", "fill"):
            session.policy = ReplayPolicy(missing=missing)  # type: ignore[arg-type]
            with session.forward_step(step, [given]) as replayed, dispatched(model) as seen:
                replayed(iter([batch]), model)
            maps[missing] = seen[0][0]
            assert replayed.counts == Counts(replayed=13, missing=1, beyond=2, padding=4)
        live = map_of(rows(own, 0))
        uncovered = [3 * BATCH + 1, 7 * BATCH, 7 * BATCH + 1]
        assert torch.equal(maps["live"][uncovered], live[uncovered])
        filled = maps["fill"][uncovered]
        assert filled.sum(dim=1).tolist() == [2, 2, 2]
        assert filled.sum(dim=0).max() <= 1  # rotating: no expert twice before each had one
        others = [row for row in range(2 * (LENGTH + 2)) if row not in uncovered]
        assert torch.equal(maps["live"][others], maps["fill"][others])
        session.policy = ReplayPolicy(missing="error")
        message = r"routes\[1\]: expected recorded rows for all its 8 tokens here, got 1 .* is position 3"
        with pytest.raises(mt.MissingRowsError, match=message):
            session.forward_step(step, [given])


def test_padding_is_live_or_filled_and_spread_over_all_experts() -> None:
    # case D10; trap 2, 3
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, 10)
        batch[:, 4:] = 0
        own = ids_of(model, batch)
        session = attach(model)
        routes = routes_of(session, own[:, :4])
        given = session.padded(routes, [4, 4], 10)
        loads = {}
        for padding in ("live", "fill"):
            session.policy = ReplayPolicy(padding=padding)  # type: ignore[arg-type]
            with session.forward_step(step, [given]) as replayed, dispatched(model) as seen:
                output = replayed(iter([batch]), model)[0]
            loads[padding] = seen[0][0][8:].sum(dim=0)
            assert torch.allclose(output[:, :4], forward(model, batch)[:, :4])
            assert padding == "fill" or torch.equal(output, forward(model, batch))
        assert torch.equal(loads["live"], map_of(rows(own, 0))[8:].sum(dim=0))
        assert loads["fill"].max() - loads["fill"].min() <= 1


def test_more_missing_than_allowed_is_an_error() -> None:
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH + 2)
        session = attach(model)
        own = ids_of(model, batch)
        given = with_gap(session, own, missing=(1, 4))
        for policy, message in (
            (ReplayPolicy(max_missing=0.25), None),
            (
                ReplayPolicy(max_missing=0.2),
                r"routes\[1\]: expected recorded rows for at least 80% of its 8 tokens",
            ),
            (ReplayPolicy(max_missing_in_batch=0.125), None),
            (
                ReplayPolicy(max_missing_in_batch=0.12),
                "expected at most 12% of the step's 16 tokens here .*, got 2",
            ),
        ):
            session.policy = policy
            if message is None:
                session.forward_step(step, [given])
                continue
            with pytest.raises(mt.MissingRowsError, match=message):
                session.forward_step(step, [given])


def test_a_share_that_is_just_allowed_is_allowed() -> None:
    with parallel():
        model = gpt(config())
        session = attach(model)
        ids = np.tile(np.arange(2), (100, 2, 1))
        valid = np.arange(100) >= 29  # 0.29 * 100 is below 29 in floating point
        given = session.packed([mt.Routes.from_ids(session.spec, ids, valid=valid)], [100])
        for field in ("max_missing", "max_missing_in_batch"):
            session.policy = ReplayPolicy(**{field: 0.29})  # type: ignore[arg-type]
            assert session.forward_step(step, [given]).counts.missing == 29
            session.policy = ReplayPolicy(**{field: 0.28})  # type: ignore[arg-type]
            with pytest.raises(mt.MissingRowsError):
                session.forward_step(step, [given])


def test_rows_of_older_versions_count_as_missing() -> None:
    # case B05; trap 6
    with parallel():
        model = gpt(config())
        session = attach(model)
        own = ids_of(model, tokens(BATCH, LENGTH))
        routes = [
            mt.Routes.from_ids(session.spec, one, version=version)
            for one, version in zip(own, (4, 5), strict=True)
        ]
        given = session.padded(routes, [LENGTH] * BATCH, LENGTH)
        for least, replayed_rows in ((4, 16), (5, 8), (6, 0)):
            session.policy = ReplayPolicy(min_version=least)
            counts = session.forward_step(step, [given]).counts
            assert counts == Counts(replayed=replayed_rows, missing=16 - replayed_rows)


def test_bad_sequences_are_dropped_or_the_step_goes_live() -> None:
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH + 2)
        own = ids_of(model, batch)
        session = attach(model)
        other = foreign(own)
        given = with_gap(session, other)
        session.policy = ReplayPolicy(missing="error", on_bad_data="drop")
        with (
            session.forward_step(step, [given, whole(session, other)]) as replayed,
            dispatched(model) as seen,
        ):
            replayed(iter([batch]), model)
            replayed(iter([batch]), model)
        assert replayed.dropped == {(0, 1)}
        assert replayed.counts == Counts(replayed=7 + 20, beyond=1, padding=4, dropped=8)
        live = map_of(rows(own, 0))
        assert torch.equal(seen[0][0][1::2], live[1::2])
        assert torch.equal(seen[0][0][0:14:2], map_of(rows(other, 0))[0:14:2])
        session.policy = ReplayPolicy(missing="error", on_bad_data="live")
        with session.forward_step(step, [given]) as replayed:
            assert torch.equal(replayed(iter([batch]), model)[0], forward(model, batch))
        assert replayed.is_live
        with session.forward_step(step, [whole(session, other)]) as replayed:
            replayed(iter([batch]), model)
        assert not replayed.is_live
        wrong = mt.Routes.from_ids(mt.RouteSpec([0, 1], top_k=2, num_experts=9), own[0])
        session.policy = ReplayPolicy(on_bad_data="drop")
        mixed = MicroBatchRoutes([wrong, given.routes[1]], given.row_ids)
        assert session.forward_step(step, [mixed]).dropped == {(0, 0)}


def loads_of(name: str, act: Callable[[], Any]) -> list[torch.Tensor]:
    """The loads, [experts], from which Megatron makes a load-balancing loss while `act` runs."""
    import megatron.core.transformer.moe.router as module

    seen: list[torch.Tensor] = []
    plain = getattr(module, name)

    def tap(*args: Any, **rest: Any) -> Any:
        seen.append(rest["tokens_per_expert"].detach().clone())
        return plain(*args, **rest)

    setattr(module, name, tap)
    try:
        act()
    finally:
        setattr(module, name, plain)
    return seen


def test_load_balancing_losses_see_live_replayed_or_no_ids() -> None:
    # case I14
    for kind in ("aux_loss", "seq_aux_loss", "global_aux_loss"):
        for recompute in ({}, FULL):
            with parallel():
                model = gpt(config(moe_router_load_balancing_type=kind, moe_aux_loss_coeff=0.1, **recompute))
                batch = tokens(1, LENGTH)
                own = ids_of(model, batch)
                session = attach(model)
                other = foreign(own)
                loads = {}
                for choice in ("live", "replayed", "none"):
                    session.policy = ReplayPolicy(aux_loss=choice)  # type: ignore[arg-type]
                    for layer in model.decoder.layers:
                        layer.mlp.router.reset_global_aux_loss_tracker()
                    with session.forward_step(step, [whole(session, other)]) as replayed:
                        loads[choice] = loads_of(
                            "switch_load_balancing_loss_func", partial(run, model, [batch], replayed)
                        )
                assert len(loads["live"]) == len(loads["replayed"]) == 2, (kind, recompute)
                assert not loads["none"]
                for column in range(2):
                    at = 1 - column if recompute else column
                    assert torch.equal(loads["replayed"][at].long(), map_of(rows(other, column)).sum(dim=0))
                # Only the first layer's input is that of the plain forward.
                assert torch.equal(
                    loads["live"][1 if recompute else 0].long(), map_of(rows(own, 0)).sum(dim=0)
                )


def test_the_z_loss_is_made_of_the_live_logits() -> None:
    import megatron.core.transformer.moe.router as module

    with parallel():
        model = gpt(config(moe_z_loss_coeff=0.1))
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        other = foreign(ids_of(model, batch))
        seen: list[torch.Tensor] = []
        plain = module.z_loss_func

        def tap(logits: torch.Tensor, *args: Any, **rest: Any) -> Any:
            seen.append(logits.detach().clone())
            return plain(logits, *args, **rest)

        module.z_loss_func = tap
        try:
            forward(model, batch)
            with session.forward_step(step, [whole(session, other)]) as replayed:
                replayed(iter([batch]), model)
        finally:
            module.z_loss_func = plain
        assert len(seen) == 4
        assert torch.equal(seen[0], seen[2])  # the first layer


def test_the_expert_bias_counts_replayed_live_or_no_ids_and_never_padding() -> None:
    # case I14
    for recompute in ({}, FULL):
        with parallel():
            model = gpt(
                config(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, **recompute)
            )
            batch = tokens(BATCH, LENGTH)
            own = ids_of(model, batch)
            session = attach(model)
            other = foreign(own)
            given = session.padded(routes_of(session, other[:, :6]), [6, 6], LENGTH)
            counts = {}
            for choice in ("replayed", "live", "frozen"):
                session.policy = ReplayPolicy(expert_bias=choice)  # type: ignore[arg-type]
                for layer in model.decoder.layers:
                    layer.mlp.router.local_tokens_per_expert.zero_()
                with session.forward_step(step, [given]) as replayed:
                    run(model, [batch], replayed)
                counts[choice] = [
                    one.mlp.router.local_tokens_per_expert.clone() for one in model.decoder.layers
                ]
            real = 6 * BATCH
            for column in range(2):
                assert torch.equal(
                    counts["replayed"][column].long(), map_of(rows(other, column))[:real].sum(dim=0)
                )
                assert counts["live"][column].sum() == real * 2
            assert torch.equal(counts["live"][0].long(), map_of(rows(own, 0))[:real].sum(dim=0))
            assert all(not one.any() for one in counts["frozen"])


def test_megatrons_padding_mask_is_true_for_padding_and_hides_it_from_the_count() -> None:
    # trap 21: its own docstrings say the opposite of its code.
    with parallel():
        model = gpt(config(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True))
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        session = attach(model)
        other = foreign(own)
        padding = torch.arange(LENGTH) >= torch.tensor([[6], [5]])

        def masked(data: Any, which: Any) -> Any:
            hidden = torch.ones(BATCH, 1, LENGTH, LENGTH).tril() < 0.5
            positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
            return which(next(data), positions, hidden, labels=batch, padding_mask=padding), None

        for layer in model.decoder.layers:
            layer.mlp.router.local_tokens_per_expert.zero_()
        with session.forward_step(masked, [whole(session, other)]) as replayed:
            replayed(iter([batch]), model)
        real = ~padding.T.reshape(-1)
        for column, layer in enumerate(model.decoder.layers):
            counted = layer.mlp.router.local_tokens_per_expert.long()
            assert torch.equal(counted, map_of(rows(other, column))[real].sum(dim=0))


def test_capacity_and_jitter_are_taken_if_the_policy_names_them() -> None:
    with parallel():
        batch = tokens(BATCH, LENGTH)
        dropping = gpt(config(moe_expert_capacity_factor=0.5))
        with pytest.raises(mt.UnsupportedError, match=r'ReplayPolicy\(allow=\["capacity"\]\) takes it'):
            attach(dropping)
        session = attach(dropping, policy=ReplayPolicy(allow=["capacity"]))
        ids = np.tile(np.array([0, 1]), (BATCH, LENGTH, 2, 1))
        with session.forward_step(step, [whole(session, ids)]) as replayed, dispatched(dropping) as maps:
            replayed(iter([batch]), dropping)
        assert maps[0][0].sum(dim=0).tolist() == [
            2,
            2,
            0,
            0,
            0,
            0,
            0,
            0,
        ]  # of 16: what capacity does to a record
        jittery = gpt(config(moe_input_jitter_eps=0.1))
        with pytest.raises(mt.UnsupportedError, match=r"moe_input_jitter_eps off for replay, got 0.1"):
            attach(jittery, policy=ReplayPolicy(allow=["capacity"]))
        session = attach(jittery, policy=ReplayPolicy(allow=["jitter"]))
        with session.forward_step(step, [whole(session, ids)]) as replayed:
            replayed(iter([batch]), jittery)


def test_a_policy_that_changes_nothing_changes_nothing() -> None:
    with parallel():
        settings = config(
            moe_router_load_balancing_type="aux_loss",
            moe_aux_loss_coeff=0.1,
            moe_z_loss_coeff=0.1,
            moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True,
        )
        model = gpt(settings)
        batch = tokens(BATCH, LENGTH)
        own = ids_of(model, batch)
        plain = run(model, [batch])
        session = attach(model)
        with session.forward_step(step, [whole(session, own)]) as replayed:
            assert same(run(model, [batch], replayed), plain)
