"""The worker's side: records the forwards of a model runner and reads the rows of requests that sampled.

Each stage of a pipeline records its own layers and sends the ids to the next one beside the hidden states;
the worker that answers (the last stage, first tensor-parallel rank) has the store. Nothing is shared between
processes. A fault of the recorder never reaches vLLM: rows become missing and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.distributed.aux_output_connector.connector import AuxRequestOutput
from vllm.sequence import IntermediateTensors

from moetape import Recorder, RouteSpec, Store, layout
from moetape.engines.vllm.answer import Ids, answer_ids
from moetape.engines.vllm.blocks import BlockOwners
from moetape.engines.vllm.capture import recording_into

__all__ = ["KvSpace", "RouteRecording"]

logger = logging.getLogger("vllm.moetape")

_ROUTES = "moetape_routes"


@dataclass(frozen=True)
class KvSpace:
    """The KV cache group whose slots rows follow: index, tokens of a block, blocks, hashes to a block."""

    group: int
    block_size: int
    num_blocks: int
    hashes_per_block: int
    may_be_filled_from_outside: bool


class RouteRecording:
    """Stands around `execute_model` and `sample_tokens` of a model runner. One thread at a time.

    layers: those of this stage that have a router. num_before: how many have one in the stages before.
    space: of the worker that answers; others have no store.
    """

    def __init__(
        self,
        runner: Any,
        spec: RouteSpec,
        layers: list[int],
        num_before: int,
        max_rows: int,
        space: KvSpace | None,
    ) -> None:
        self._runner = runner
        self._spec = spec
        self._layers = layers
        self._num_before = num_before
        self._space = space
        self._recorder: Recorder | None = None
        if space is not None:
            self._store = Store(spec, space.num_blocks * space.block_size)
            self._recorder = Recorder(self._store, max_rows)
            self._owners = BlockOwners(
                self._store,
                space.group,
                space.block_size,
                space.hashes_per_block,
                space.may_be_filled_from_outside,
            )
            logger.info(
                "moetape: %.1f MiB for the routes of %s",
                self._store.memory_bytes / 2**20,
                self._store.num_slots,
            )
        self._ids_of: dict[int, torch.Tensor] = {}
        self._sent: torch.Tensor | None = None
        self._num_rows = 0
        self._fault: Exception | None = None
        self._num_faults = 0
        self._outputs: dict[str, AuxRequestOutput] | None = None
        self._execute_model = runner.execute_model
        self._sample_tokens = runner.sample_tokens
        runner.execute_model = self.execute_model
        runner.sample_tokens = self.sample_tokens

    # capture.Sink

    def take(self, layer: int, ids: torch.Tensor) -> None:
        """The ids of one layer of the forward under way."""
        try:
            if self._recorder is None:
                self._ids_of[layer] = ids.to(torch.int32, copy=True)
            else:
                self._recorder.capture(layer, ids)
                self._num_rows = ids.shape[0]
        except Exception as fault:
            self._note(fault)

    # Around the model runner

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        """Run the forward, recorded."""
        self._outputs, self._fault = None, None
        self._ids_of, self._num_rows = {}, 0
        earlier = None
        if intermediate_tensors is not None:
            earlier = intermediate_tensors.tensors.pop(_ROUTES, None)
        if self._recorder is not None:
            with self._noting_faults():
                self._recorder.begin()
            with self._noting_faults():
                self._owners.begin_step(scheduler_output)
        with recording_into(self):
            output = self._execute_model(scheduler_output, intermediate_tensors)
        if isinstance(output, IntermediateTensors):
            return IntermediateTensors({**output.tensors, _ROUTES: self._for_next_stage(earlier)})
        if self._recorder is not None and scheduler_output.total_num_scheduled_tokens > 0:
            with self._noting_faults():
                self._commit(scheduler_output.total_num_scheduled_tokens, earlier)
            with self._noting_faults():
                self._outputs = self._read(scheduler_output)
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, and lay the rows beside the tokens."""
        output = self._sample_tokens(*args, **kwargs)
        if self._outputs is not None:
            inner = getattr(output, "_model_runner_output", output)
            if hasattr(inner, "aux_output_connector_output"):
                inner.aux_output_connector_output = self._outputs
            self._outputs = None
        return output

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as fault:
            self._note(fault)

    def _note(self, fault: Exception) -> None:
        """Whatever it is, requests go on, and their rows are missing."""
        if self._fault is None:
            self._fault = fault
            self._tell("routes of this step are missing", fault)

    def _tell(self, what: str, fault: Exception | None = None) -> None:
        """Into the log, but the 1st, 2nd, 4th, 8th … time only: what is wrong may be so in every step."""
        self._num_faults += 1
        if self._num_faults & (self._num_faults - 1) == 0:
            logger.error("moetape: %s (step with faults no. %d)", what, self._num_faults, exc_info=fault)

    # Pipeline stages

    def _for_next_stage(self, earlier: torch.Tensor | None) -> torch.Tensor:
        """The ids [layers so far, rows, k]; no rows at all where they are not complete."""
        num_layers = self._num_before + len(self._layers)
        self._sent = torch.zeros((num_layers, 0, self._spec.top_k), dtype=torch.int32)
        with self._noting_faults():
            parts = [] if earlier is None else [earlier]
            parts += [self._ids_of[layer][None] for layer in self._layers if layer in self._ids_of]
            parts = [part for part in parts if len(part)]
            found = sum(len(part) for part in parts)
            if found == num_layers and len({part.shape[1:] for part in parts}) == 1:
                self._sent = torch.cat(parts)
        return self._sent

    # The worker that answers

    def _commit(self, num_tokens: int, earlier: torch.Tensor | None) -> None:
        """The step's rows to its slots; after any error these hold no rows, not even of earlier steps."""
        assert self._recorder is not None
        slots = None
        try:
            slots = self._step_slots()[:num_tokens]
            for layer, ids in zip(self._spec.layers, () if earlier is None else earlier, strict=False):
                self._recorder.capture(layer, ids)
            rows = layout.whole()
            if self._num_rows > num_tokens:
                rows = layout.graph_padded(num_tokens, self._num_rows)
            report = self._recorder.commit(slots, layout=rows).report
        except Exception:
            if slots is None:
                self._store.reset()
            elif self._store.read(slots).valid.any():  # else the commit refused them
                self._store.invalidate(slots)
            raise
        if report.refused:
            self._tell(f"rows of step {report.step} are missing: {report}")

    def _read(self, scheduler_output: Any) -> dict[str, AuxRequestOutput]:
        """The rows that requests are owed, of those that sampled in this step, by one gather."""
        owed = scheduler_output.aux_output_connector_metadata.requests
        num_scheduled = scheduler_output.num_scheduled_tokens
        batch = self._runner.input_batch
        table = batch.block_table[self._group()]
        step_slots, blocks, size = self._step_slots(), table.block_table.np, table.block_size
        num_computed = batch.num_computed_tokens_cpu[: batch.num_reqs].tolist()
        skipped = self._runner.discard_request_mask.np[: batch.num_reqs].tolist()
        slots: list[Any] = []
        cuts: list[tuple[str, int, int, int]] = []
        at = num_rows = 0
        for index, request_id in enumerate(batch.req_ids):
            first, computed = owed.get(request_id), num_computed[index]
            end = computed + num_scheduled[request_id]
            if first is not None and not skipped[index]:
                if first >= computed:
                    slots.append(step_slots[at + first - computed : at + end - computed])
                else:
                    positions = np.arange(first, end)
                    slots.append(blocks[index, positions // size].astype(np.int64) * size + positions % size)
                cuts.append((request_id, first, num_rows, num_rows + end - first))
                num_rows += end - first
            at += end - computed
        if not cuts:
            return {}
        routes = self._store.read(np.concatenate(slots))
        return _cut(answer_ids(routes), routes.valid if not routes.complete else None, self._spec, cuts)

    def _step_slots(self) -> Any:
        """Where the step's tokens lie: what the attention was told, for the host's copy need not follow."""
        return self._runner.input_batch.block_table[self._group()].slot_mapping.gpu.numpy()

    def _group(self) -> int:
        assert self._space is not None
        return self._space.group


def _cut(
    ids: Ids, valid: Any, spec: RouteSpec, cuts: list[tuple[str, int, int, int]]
) -> dict[str, AuxRequestOutput]:
    """Each request's part; signed only where rows of its own are missing."""
    narrow = ids if valid is None else ids.astype(np.uint8 if spec.id_bytes == 1 else np.uint16)
    return {
        request_id: AuxRequestOutput(
            first, (narrow if valid is None or valid[start:end].all() else ids)[start:end]
        )
        for request_id, first, start, end in cuts
    }
