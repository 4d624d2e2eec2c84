"""What replay in Megatron refuses, by name. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

import base64
import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import moetape as mt
from megatron_cpu import config, dispatched, forward, gpt, map_of, parallel, step, tokens
from megatron_story import BATCH, LENGTH, foreign, ids_of, routes_of, rows, whole
from moetape.trainers.megatron import Counts, MicroBatchRoutes, ReplayPolicy, attach

# What a router would do with replayed ids: ignore them, or not what they say.
REFUSED: dict[str, Any] = {
    "moe_router_fusion": True,
    "moe_router_force_load_balancing": True,
    "moe_expert_capacity_factor": 1.0,
    "moe_token_dropping": True,
    "moe_input_jitter_eps": 0.01,
    "overlap_moe_expert_parallel_comm": True,
    "cuda_graph_impl": "local",
    "enable_cuda_graph": True,
    "external_cuda_graph": True,
}


def test_routers_that_would_not_do_what_they_are_told_are_refused_by_name() -> None:
    # case H09, H13; trap 1
    with parallel():
        model = gpt(config())
        for setting, value in REFUSED.items():
            before = getattr(model.config, setting)
            setattr(model.config, setting, value)
            with pytest.raises(
                mt.UnsupportedError, match=rf"decoder.layers.0.mlp.router \(layer 0\).*{setting}"
            ):
                attach(model)
            setattr(model.config, setting, before)
        router = model.decoder.layers[1].mlp.router
        for kind in ("sinkhorn", "quantile_balancing", ["aux_loss", "sinkhorn"]):
            router.routing_type = kind
            with pytest.raises(
                mt.UnsupportedError, match=r"decoder.layers.1.mlp.router .*(sinkhorn|quantile)"
            ):
                attach(model)
        router.routing_type = "none"
        model.config.fp8, model.config.recompute_granularity = "e4m3", "full"
        with pytest.raises(mt.UnsupportedError, match="Transformer Engine's"):
            attach(model)
        model.config.fp8 = model.config.recompute_granularity = None
        attach(model)


def test_a_configuration_that_changes_later_is_refused_before_anything_runs() -> None:
    with parallel():
        model = gpt(config())
        session = attach(model)
        given = whole(session, ids_of(model, tokens(BATCH, LENGTH)))
        model.config.moe_router_fusion = True
        with pytest.raises(mt.UnsupportedError, match="moe_router_fusion"):
            session.forward_step(step, [given])


def test_routers_of_others_are_refused() -> None:
    from megatron.core.transformer.moe.router import TopKRouter

    with parallel():
        model = gpt(config())
        plain = TopKRouter.routing

        def patched(self: Any, logits: Any, *args: Any, **rest: Any) -> Any:
            return plain(self, logits, *args, **rest)

        TopKRouter.routing = patched
        try:
            with pytest.raises(mt.UnsupportedError, match="expected routing by megatron-core's TopKRouter"):
                attach(model)
        finally:
            TopKRouter.routing = plain


def test_models_and_specs_that_do_not_fit_are_refused() -> None:
    # case J01, G16; trap 9
    with parallel():
        model = gpt(config())
        for spec, message in (
            (
                mt.RouteSpec([0, 1], top_k=3, num_experts=8),
                "expected 3 of 8 experts as the spec has, got 2 of 8",
            ),
            (mt.RouteSpec([0, 1], top_k=2, num_experts=16), "got 2 of 8"),
            (mt.RouteSpec([0], top_k=2, num_experts=8), "expected layer 1 in the spec"),
            (mt.RouteSpec([0, 1], top_k=2, num_experts=8, distinct=False), "expected distinct ids"),
            (mt.RouteSpec([0, 1, 2], top_k=2, num_experts=8), r"expected routers in layers \[0, 1, 2\]"),
        ):
            with pytest.raises(mt.SpecMismatchError, match=message):
                attach(model, spec=spec)
        with pytest.raises(mt.InvalidArgumentError, match="got a dense one"):
            attach(
                gpt(
                    config(
                        num_moe_experts=None, moe_ffn_hidden_size=None, moe_token_dispatcher_type="allgather"
                    )
                )
            )
        with pytest.raises(mt.WrongTypeError, match="expected a Megatron model or its chunks, got Linear"):
            attach(torch.nn.Linear(2, 2))
        with pytest.raises(mt.InvalidArgumentError, match="at least one chunk"):
            attach([])
        model.decoder.layers[1].mlp.router.layer_number = 1
        with pytest.raises(
            mt.UnsupportedError, match=r"expected one router in layer 0, got .*layers.0.*there too"
        ):
            attach(model)
        model.decoder.layers[1].mlp.router.layer_number = None
        with pytest.raises(mt.UnsupportedError, match="expected a layer_number of 1 or more, got None"):
            attach(model)


def test_data_that_cannot_be_right_is_refused_before_anything_runs() -> None:
    # case I05, I07, C06; trap 2, 12, 22
    with parallel():
        model = gpt(config())
        session = attach(model)
        own = ids_of(model, tokens(BATCH, LENGTH))
        good = whole(session, own)
        row_ids = np.asarray(good.row_ids)
        other = mt.RouteSpec([0, 1], top_k=2, num_experts=16)
        loose = mt.RouteSpec([0, 1], top_k=2, num_experts=8, distinct=False)
        zeros = np.zeros((LENGTH, 2, 2), np.int64)
        with pytest.raises(mt.InvalidArgumentError, match=r"row 0"):
            mt.Routes.from_ids(session.spec, zeros)  # K times expert 0 is no route
        for given, error, message in (
            ([], mt.WrongTypeError, "micro-batch 0: expected MicroBatchRoutes, got list"),
            (
                MicroBatchRoutes(good.routes, row_ids.astype(np.int32)),
                mt.WrongTypeError,
                "row_ids: expected int64",
            ),
            (
                MicroBatchRoutes(good.routes, row_ids[None]),
                mt.WrongShapeError,
                r"expected \[batch, length\] or",
            ),
            (
                MicroBatchRoutes(good.routes, np.repeat(row_ids, 2, 0)),
                mt.InvalidArgumentError,
                "expected each once",
            ),
            (MicroBatchRoutes(good.routes[:1], row_ids), mt.OutOfRangeError, "sequence"),
            (MicroBatchRoutes(good.routes[0], row_ids), mt.WrongTypeError, "expected a sequence of Routes"),
            (MicroBatchRoutes([1, 2], row_ids), mt.WrongTypeError, r"routes\[0\]: expected Routes, got int"),
            (
                MicroBatchRoutes([good.routes[0], mt.Routes.from_ids(other, own[1])], row_ids),
                mt.SpecMismatchError,
                r"micro-batch 0: routes\[1\]: expected those of",
            ),
            (
                MicroBatchRoutes([mt.Routes.from_ids(loose, own[0]), good.routes[1]], row_ids),
                mt.SpecMismatchError,
                r"routes\[0\]: expected distinct ids",
            ),
            (
                MicroBatchRoutes(good.routes, row_ids, tokens=np.zeros(3)),
                mt.WrongShapeError,
                "the shape of row_ids",
            ),
        ):
            with pytest.raises(error, match=message):
                session.forward_step(step, [given])  # type: ignore[list-item]
        with pytest.raises(mt.WrongTypeError, match="expected MicroBatchRoutes of every micro-batch"):
            session.forward_step(step, good)  # type: ignore[arg-type]
        with session.forward_step(step, [whole(session, foreign(own))]) as replayed:
            replayed(iter([tokens(BATCH, LENGTH)]), model)


def test_routes_that_do_not_end_with_their_tokens_are_refused() -> None:
    # case C04; trap 18
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        routes = routes_of(session, foreign(ids_of(model, batch)))
        for given in (session.padded(routes, [LENGTH, 6], LENGTH), session.packed(routes, [LENGTH, 6])):
            with pytest.raises(
                mt.WrongShapeError,
                match=r"routes\[1\]: expected an end within the sequence's 6 tokens, got 8",
            ):
                session.forward_step(step, [given])
        with pytest.raises(mt.WrongShapeError, match="expected one of each of 2 sequences, got 3"):
            session.forward_step(step, [session.padded([*routes, routes[0]], [LENGTH] * 2, LENGTH)])
        cut = [routes[0], routes[1].slice(0, 6)]
        with session.forward_step(step, [session.padded(cut, [LENGTH, 6], LENGTH)]) as replayed:
            replayed(iter([batch]), model)
        assert (replayed.counts.replayed, replayed.counts.padding) == (LENGTH + 6, 2)
        session.policy = ReplayPolicy(on_bad_data="drop")
        with session.forward_step(step, [session.padded(routes, [LENGTH, 6], LENGTH)]) as replayed:
            replayed(iter([batch]), model)
        assert replayed.dropped == {(0, 1)}


def test_a_micro_batch_of_padding_alone_needs_no_routes() -> None:
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        plain = forward(model, batch)
        session = attach(model)
        for padding in (0, -1):
            row_ids = np.full((BATCH, LENGTH), padding)
            with session.forward_step(step, [MicroBatchRoutes([], row_ids)]) as replayed:
                assert torch.equal(replayed(iter([batch]), model)[0], plain)
            assert replayed.counts == Counts(padding=BATCH * LENGTH)
        row_ids[1, 2] = mt.replay.row_ids(0, [2])[0]
        with pytest.raises(mt.OutOfRangeError, match="micro-batch 0: routes: expected one of each sequence"):
            session.forward_step(step, [MicroBatchRoutes([], row_ids)])


def test_a_text_that_cannot_be_read_is_bad_data_of_its_sequence() -> None:
    # trap 22
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        ids = foreign(ids_of(model, batch)).astype(np.int32)
        row_ids = whole(session, ids).row_ids
        ids[1, 3, 1] = 99

        def sources() -> list[mt.RowSource]:
            texts = [base64.b64encode(one.tobytes()).decode() for one in ids]
            return [mt.decode_rows(text, "sglang", spec=session.spec) for text in texts]

        named = r"micro-batch 0: routes\[1\]: sglang: row 3 .*layer 1: expected ids of 0 to 7, got 99"
        with pytest.raises(mt.OutOfRangeError, match=named):
            session.forward_step(step, [MicroBatchRoutes(sources(), row_ids, tokens=batch)])
        session.policy = ReplayPolicy(on_bad_data="drop")
        with (
            session.forward_step(step, [MicroBatchRoutes(sources(), row_ids)]) as replayed,
            dispatched(model) as maps,
        ):
            replayed(iter([batch]), model)
        assert replayed.dropped == {(0, 1)}
        assert replayed.counts == Counts(replayed=LENGTH, dropped=LENGTH)
        assert torch.equal(maps[0][0][::2], map_of(rows(ids, 0))[::2])
        session.policy = ReplayPolicy(on_bad_data="live")
        assert session.forward_step(step, [MicroBatchRoutes(sources(), row_ids)]).is_live


def test_a_router_is_of_one_session() -> None:
    # case G06
    with parallel():
        first, second = gpt(config()), gpt(config(), seed=9)
        session = attach(second)
        before = dict(first.decoder.layers[0].mlp.router.__dict__)
        with pytest.raises(
            mt.ConflictError,
            match=r"decoder.layers.0.mlp.router \(layer 0\): expected one that no session has",
        ):
            attach([first, second])
        assert first.decoder.layers[0].mlp.router.__dict__.keys() == before.keys()
        assert attach(second) is session
        session.detach()
        assert attach([first, second]).num_chunks == 2


def test_a_copied_router_is_plain_and_counts_for_itself() -> None:
    # case G06; trap 10
    with parallel():
        model = gpt(
            config(
                moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, add_bias_linear=False
            )
        )
        attach(model)
        router = model.decoder.layers[0].mlp.router
        shared = [
            router.config,
            *(one for one in vars(router).values() if isinstance(one, dist.ProcessGroup)),
        ]
        twin = copy.deepcopy(router, {id(one): one for one in shared})
        assert twin.router_replay is None
        twin.local_tokens_per_expert.zero_()
        router.local_tokens_per_expert.zero_()
        twin(torch.randn(LENGTH, BATCH, router.config.hidden_size))
        assert twin.local_tokens_per_expert.sum() == LENGTH * BATCH * 2
        assert router.local_tokens_per_expert.sum() == 0


def test_texts_and_rows_on_their_way_are_sources_too() -> None:
    # case J10
    with parallel():
        model = gpt(config())
        batch = tokens(BATCH, LENGTH)
        session = attach(model)
        other = foreign(ids_of(model, batch))
        routes = routes_of(session, other)
        texts = [mt.decode_rows(mt.encode(one, "vllm"), "vllm", spec=session.spec) for one in routes]
        given = session.padded(routes, [LENGTH] * BATCH, LENGTH)
        found = []
        for sources in (routes, texts):
            with session.forward_step(step, [MicroBatchRoutes(sources, given.row_ids)]) as replayed:
                found.append(replayed(iter([batch]), model)[0].detach())
            assert replayed.counts.replayed == BATCH * LENGTH
        assert torch.equal(*found)
        session.policy = ReplayPolicy(min_version=1)
        with pytest.raises(mt.UnsupportedError, match="expected Routes, which tell versions"):
            session.forward_step(step, [MicroBatchRoutes(texts, given.row_ids)])
