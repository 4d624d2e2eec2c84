"""What a step costs a device: counted on fake CUDA tensors, on which whatever would wait is an error.

Run by test_trainer_megatron.py, once for each version.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import moetape as mt
from megatron_cpu import config, gpt, parallel
from megatron_story import BATCH, LENGTH
from moetape.trainers.megatron import ReplayPolicy, attach
from moetape.trainers.megatron._checkpoint import current
from moetape.trainers.megatron._session import Chunk

CUDA = torch.device("cuda", 0)


class Copies(TorchDispatchMode):
    """The copies between devices, (bytes, type, asynchronous)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, torch.dtype, bool]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        sources = [one for one in args if isinstance(one, torch.Tensor)]
        if isinstance(output, torch.Tensor) and sources and sources[-1].device != output.device:
            source = sources[-1]
            self.seen.append(
                (source.numel() * source.itemsize, source.dtype, (kwargs or {}).get("non_blocking", False))
            )
        return output


def test_fake_tensors_count_and_complain() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:
        there = torch.zeros(3).to(CUDA)
        there.to("cpu")
        with pytest.raises(DataDependentOutputException):
            there.any().item()
    assert len(copies.seen) == 2


def test_a_micro_batch_is_one_narrow_asynchronous_copy_and_nothing_waits() -> None:
    # case F04, D06; trap 20
    for policy in (
        ReplayPolicy(),
        ReplayPolicy(missing="fill", padding="fill", aux_loss="replayed"),
        ReplayPolicy(expert_bias="live", aux_loss="none"),
        ReplayPolicy(expert_bias="frozen"),
    ):
        with parallel():
            settings = config(
                moe_router_score_function="sigmoid",
                moe_router_enable_expert_bias=True,
                moe_router_load_balancing_type="aux_loss",
                moe_aux_loss_coeff=0.1,
            )
            model = gpt(settings)
            session = attach(model, policy=policy)
            ids = np.stack([np.arange(LENGTH) % 8, (np.arange(LENGTH) + 3) % 8], axis=1)[:, None].repeat(
                2, axis=1
            )
            valid = np.arange(LENGTH) != 2
            routes = [mt.Routes.from_ids(session.spec, ids, valid=valid) for _ in range(BATCH)]
            given = session.padded(routes, [LENGTH, LENGTH], LENGTH + 2)
            num_rows = BATCH * (LENGTH + 2)
            copies = Copies()
            routers = [layer.mlp.router for layer in model.decoder.layers]

            def only_routers(data: Any, which: Any, routers: Any = routers) -> Any:
                logits = torch.zeros(LENGTH + 2, BATCH, 8, device=CUDA, requires_grad=True)
                outputs = [router.routing(logits)[0] for router in routers]
                return torch.stack(outputs).sum(), None

            replayed = session.forward_step(only_routers, [given])  # checks and plans on the CPU
            with mock.patch.object(Chunk, "device", CUDA), FakeTensorMode(allow_non_fake_inputs=True):
                for router in routers:
                    router.expert_bias = torch.zeros(8, device=CUDA)
                    router.local_tokens_per_expert = torch.zeros(8, device=CUDA)
                    # Its log of losses stands on the CPU here.
                    router.attach_and_log_load_balancing_loss = lambda probs, *_, **__: probs
                with copies:
                    output, _ = replayed(None, model)
                    [micro_batch] = session.chunks[0].flights.live
                    with current.inside(micro_batch):  # as a checkpoint recomputes
                        again, _ = only_routers(None, model)
            assert again.device == output.device == CUDA
            replayed.finish()
            # Ids of two layers, one byte each, and two bytes a row that say what the row is.
            assert copies.seen == [(2 * num_rows * 2 + 2 * num_rows, torch.uint8, True)], policy
            assert replayed.counts.replayed == BATCH * (LENGTH - 1)
