"""The same story for every parallel set-up: own routes are the same bits, foreign ones go where they say."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import moetape as mt
from megatron_cpu import config, dispatched, gpt, gradients, mean_loss, parallel, recorded, same_gradients
from megatron_cpu import forward as forward_of
from megatron_cpu import tokens as tokens_of
from moetape.trainers.megatron import MicroBatchRoutes, Session, attach


@dataclass
class SetUp:
    """A model, its ranks, its batches and its schedule ("megatron" is that of Megatron itself)."""

    changes: dict[str, Any] = field(default_factory=dict)
    tp: int = 1
    ep: int = 1
    cp: int = 1
    pp: int = 1
    vp: int = 1
    batch: int = 2
    length: int = 16
    num_micro_batches: int = 2
    schedule: str = "F0 F1 B0 B1"

    @property
    def groups(self) -> dict[str, int | None]:
        return {
            "tensor_model_parallel_size": self.tp,
            "expert_model_parallel_size": self.ep,
            "expert_tensor_parallel_size": 1,
            "context_parallel_size": self.cp,
            "pipeline_model_parallel_size": self.pp,
            "virtual_pipeline_model_parallel_size": self.vp if self.vp > 1 else None,
        }

    def config(self) -> Any:
        settings = {
            "tensor_model_parallel_size": self.tp,
            "sequence_parallel": self.tp > 1,
            "expert_model_parallel_size": self.ep,
            "expert_tensor_parallel_size": 1,
            "pipeline_model_parallel_size": self.pp,
            "pipeline_dtype": torch.float32,
            # Attention without Transformer Engine knows no context parallelism: a rank sees its own part.
            "context_parallel_size": 1,
        }
        if self.vp > 1:
            settings["virtual_pipeline_model_parallel_size"] = self.vp
        return config(**{**settings, **self.changes})


class Ranks:
    """A set-up on this rank: its chunks, its data, and Megatron's own cut of it."""

    def __init__(self, setup: SetUp, state: Any) -> None:
        self.setup, self.state = setup, state
        self.config = setup.config()
        stages: list[int | None] = list(range(setup.vp)) if setup.vp > 1 else [None]
        self.chunks = [gpt(self.config, seed=3 + (stage or 0), vp_stage=stage) for stage in stages]
        self.replica = state.get_data_parallel_rank(with_context_parallel=False)
        shape = (setup.batch, setup.length)
        seeds = range(setup.num_micro_batches)
        self.tokens = [self.cut(tokens_of(*shape, seed=100 * self.replica + seed)) for seed in seeds]
        rows = torch.from_numpy(mt.replay.RowIds.from_lengths([setup.length] * setup.batch).ids)
        self.row_ids = self.cut(rows.reshape(shape))

    def cut(self, array: torch.Tensor) -> torch.Tensor:
        """Megatron's cut of [batch, length] for context parallelism."""
        from megatron.core.utils import get_batch_on_this_cp_rank as cut

        known = {"cp_group": self.state.get_context_parallel_group(), "is_hybrid_cp": False}
        rest = {name: known[name] for name in inspect.signature(cut).parameters if name in known}
        return cut({"tokens": array}, **rest)["tokens"].contiguous()

    @property
    def rows(self) -> np.ndarray[Any, Any]:
        """The row ids as this rank's routers see them, by Megatron's own cut for sequence parallelism."""
        from megatron.core.tensor_parallel.mappings import scatter_to_sequence_parallel_region

        by_position = self.row_ids.T.contiguous()
        if self.config.sequence_parallel:
            by_position = scatter_to_sequence_parallel_region(by_position)
        return by_position.reshape(-1).numpy()

    def run(self, call: Any, forward_only: bool = False) -> Any:
        """(losses, gradients) of one call of the schedule."""
        losses = (
            self._run_megatron(call, forward_only) if self.setup.schedule == "megatron" else self._run(call)
        )
        found = {
            f"{at}.{name}": one
            for at, chunk in enumerate(self.chunks)
            for name, one in gradients(chunk).items()
        }
        return losses, found

    def _run(self, call: Any) -> list[torch.Tensor]:
        [chunk] = self.chunks
        data, outputs = iter(self.tokens), {}
        for word in self.setup.schedule.split():
            if word[0] == "F":
                output, loss = call(data, chunk)
                outputs[word[1:]] = loss(output)[0]
            else:
                outputs[word[1:]].backward()
        return [outputs[key].detach() for key in sorted(outputs)]

    def _run_megatron(self, call: Any, forward_only: bool) -> list[torch.Tensor]:
        from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

        told = get_forward_backward_func()(
            forward_step_func=call,
            data_iterator=[iter(self.tokens) for _ in self.chunks]
            if len(self.chunks) > 1
            else iter(self.tokens),
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=self.setup.num_micro_batches,
            seq_length=self.setup.length // self.setup.cp,
            micro_batch_size=self.setup.batch,
            forward_only=forward_only,
        )
        return [one["loss"] for one in told]

    def own_ids(self, call: Any) -> list[np.ndarray[Any, Any]]:
        """What all ranks' routers choose themselves, a micro-batch: [sequence, position, layer, k]."""
        here: dict[int, list[torch.Tensor]] = {}
        with Together(recorded(chunk) for chunk in self.chunks) as seen:
            self.run(call)
        for chunk in seen:
            here.update(chunk)
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(
            told,
            (self.replica, self.rows, {layer: [one.numpy() for one in ids] for layer, ids in here.items()}),
        )
        layers = sorted({layer for _, _, ids in told for layer in ids})
        shape = (self.setup.batch, self.setup.length, len(layers), self.config.moe_router_topk)
        found = [np.full(shape, -1) for _ in self.tokens]
        for replica, rows, ids in told:
            if replica != self.replica:
                continue
            for layer, each in ids.items():
                for at, one in enumerate(each):
                    found[at][(rows >> 32) - 1, rows & 0xFFFFFFFF, layers.index(layer)] = one
        assert all((one >= 0).all() for one in found)
        return found

    def routes(self, session: Session, ids: list[np.ndarray[Any, Any]]) -> list[MicroBatchRoutes]:
        return [
            MicroBatchRoutes([mt.Routes.from_ids(session.spec, one) for one in each], self.row_ids)
            for each in ids
        ]


class Together:
    """Several contexts as one."""

    def __init__(self, contexts: Any) -> None:
        self.contexts = list(contexts)

    def __enter__(self) -> list[Any]:
        return [one.__enter__() for one in self.contexts]

    def __exit__(self, *error: Any) -> None:
        for one in self.contexts:
            one.__exit__(*error)


def step(data_iterator: Any, model: Any) -> Any:
    return forward_of(model, next(data_iterator)), mean_loss


def foreign(ids: Any, num_experts: int = 8) -> Any:
    """Other experts for every row, by another shift in each layer."""
    return (ids + 1 + np.arange(ids.shape[2])[None, None, :, None]) % num_experts


def prove(setup: SetUp) -> None:
    """Own routes give the same bits on every rank; foreign ones others, as the dispatchers receive."""
    with parallel(**setup.groups) as state:
        ranks = Ranks(setup, state)
        plain = ranks.run(step)
        ids = ranks.own_ids(step)
        session = attach(ranks.chunks)
        with session.forward_step(step, ranks.routes(session, ids)) as replayed:
            again = ranks.run(replayed)
        assert all(map(torch.equal, plain[0], again[0])), "losses differ"
        assert same_gradients(plain[1], again[1]), "gradients differ"
        assert replayed.counts.replayed == len(ranks.rows) * setup.num_micro_batches
        other = [foreign(one) for one in ids]
        with (
            session.forward_step(step, ranks.routes(session, other)) as replayed,
            Together(dispatched(chunk) for chunk in ranks.chunks) as maps,
        ):
            changed = ranks.run(replayed)
        _check_dispatched(ranks, session, other, maps)
        assert not any(map(torch.equal, plain[0], changed[0])), "foreign routes changed no loss"
        assert not same_gradients(plain[1], changed[1]), "foreign routes changed no gradient"
        routers = [name for name in changed[1] if name.endswith("router.weight")]
        assert len(routers) == len(session.layers)
        assert all(changed[1][name].abs().sum() > 0 for name in routers), "a router got no gradient"
        assert not any(chunk.flights for chunk in session.chunks)
        session.detach()


def _check_dispatched(ranks: Ranks, session: Session, ids: list[Any], maps: list[dict[int, Any]]) -> None:
    rows = ranks.rows
    for chunk, seen in zip(session.chunks, maps, strict=True):
        for layer in chunk.names:
            column = session.spec.layers.index(layer)
            wanted = []
            for one in ids:
                bits = np.zeros((len(rows), ranks.config.num_moe_experts), bool)
                np.put_along_axis(bits, one[(rows >> 32) - 1, rows & 0xFFFFFFFF, column], True, axis=1)
                wanted.append(bits)
            got = {one.numpy().tobytes() for one in seen[layer]}
            assert got == {one.tobytes() for one in wanted}, f"layer {layer}: the dispatcher got other ids"
