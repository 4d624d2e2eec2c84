"""The scheduler's side: which rows a request is owed, and what it gets of those that the worker read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from vllm.distributed.aux_output_connector.connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
)

from moetape import RouteSpec
from moetape.engines.vllm.answer import Ids, missing_answer

__all__ = ["WANTS", "SchedulerConnector"]

WANTS = "return_routed_experts"
"""The key of SamplingParams.extra_args (over HTTP, of vllm_xargs) that switches a request's routes off."""

_OFF = ("0", "false")  # as JSON, or as text


class SchedulerConnector(AuxOutputSchedulerConnector):  # type: ignore[misc]
    """vLLM's own connector, but it never fails a request, and a request may be left out.

    It counts itself which rows it has given, so every row is given once, whatever the scheduler does in
    between. Rows that the worker did not send are given as missing.
    """

    def __init__(self, spec: RouteSpec, sends_hashes: bool) -> None:
        """sends_hashes: whether workers are told the hashes of blocks, since KV may come from elsewhere."""
        super().__init__()
        self._spec = spec
        self._sends_hashes = sends_hashes
        self._num_given: dict[str, int] = {}  # of requests that want routes

    def build_connector_meta(self, scheduler_output: Any, requests: Any) -> AuxOutputConnectorMetadata:
        """vLLM's metadata; its requests are those that want routes, with the first row that they are owed."""
        owed = {}
        for request_id in scheduler_output.num_scheduled_tokens:
            first = self._first_owed(requests[request_id])
            if first is not None:
                owed[request_id] = first
        if not self._sends_hashes:
            return AuxOutputConnectorMetadata(self._generation, owed, {}, ())
        # Those of a session may change with its next input, and a worker is told of a hash but once.
        lasting = {
            request_id: count
            for request_id, count in scheduler_output.num_scheduled_tokens.items()
            if not requests[request_id].resumable
        }
        metadata = super().build_connector_meta(SimpleNamespace(num_scheduled_tokens=lasting), requests)
        metadata.requests = owed
        return metadata

    def take_output(self, request: Any, output: dict[str, AuxRequestOutput] | None) -> Ids | None:
        """The rows up to the request's newest token, behind those that were given before."""
        first, end = self._first_owed(request), request.num_tokens - 1
        if first is None or end < first:
            return None
        self._num_given[request.request_id] = end
        sent = None if output is None else output.get(request.request_id)
        if sent is None:
            return missing_answer(self._spec, end - first, "lost")
        sent_first, rows = sent.token_start, sent.rows
        sent_end = sent_first + len(rows)
        if sent_first <= first and end <= sent_end:
            return cast(Ids, rows[first - sent_first : end - sent_first])
        rows = rows[max(first - sent_first, 0) : max(end - sent_first, 0)]
        gap = min(max(sent_first - first, 0), end - first)
        tail = end - first - gap - len(rows)
        return np.concatenate(
            (missing_answer(self._spec, gap, "lost"), rows, missing_answer(self._spec, tail, "lost"))
        )

    def request_finished(self, request: Any) -> None:
        """Forget the request. It is also called when one is preempted: that keeps what it was given."""
        super().request_finished(request)
        if request.is_finished():
            self._num_given.pop(request.request_id, None)

    def _first_owed(self, request: Any) -> int | None:
        """The first row that a request was not given; None for one that wants no routes."""
        given = self._num_given.get(request.request_id)
        if given is not None:
            return given
        parameters = request.sampling_params
        if parameters is None or str((parameters.extra_args or {}).get(WANTS)).lower() in _OFF:
            return None
        return min(int(parameters.routed_experts_prompt_start), int(request.num_prompt_tokens))
