"""What replay in Megatron refuses, by name. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from megatron_cpu import config, gpt, parallel, step, tokens
from megatron_story import BATCH, LENGTH, foreign, ids_of, routes_of, whole
from moetape.trainers.megatron import MicroBatchRoutes, ReplayPolicy, attach

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
