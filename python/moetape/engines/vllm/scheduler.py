"""The scheduler's side: which rows a request is owed, and what it gets of those that the worker read."""

from __future__ import annotations

from typing import Any

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


class SchedulerConnector(AuxOutputSchedulerConnector):  # type: ignore[misc]
    """vLLM's own connector, but it never fails a request, and a request may be left out.

    It counts itself which rows it has given, so every row is given once, whatever the scheduler does in
    between. Rows that the worker did not send are given as missing.
    """

    def __init__(self, spec: RouteSpec) -> None:
        super().__init__()
        self._spec = spec
        self._num_given: dict[str, int] = {}

    def build_connector_meta(self, scheduler_output: Any, requests: Any) -> AuxOutputConnectorMetadata:
        """vLLM's metadata; its requests are those that want routes, with the first row that they are owed."""
        metadata = super().build_connector_meta(scheduler_output, requests)
        metadata.requests = {
            request_id: self._first_owed(requests[request_id])
            for request_id in metadata.requests
            if _wants_routes(requests[request_id])
        }
        return metadata

    def take_output(self, request: Any, output: dict[str, AuxRequestOutput] | None) -> Ids | None:
        """The rows up to the request's newest token, behind those that were given before."""
        if not _wants_routes(request):
            return None
        first, end = self._first_owed(request), request.num_tokens - 1
        if end < first:
            return None
        self._num_given[request.request_id] = end
        sent = None if output is None else output.get(request.request_id)
        if sent is None:
            return missing_answer(self._spec, end - first, "lost")
        sent_end = sent.token_start + len(sent.rows)
        rows: Ids = sent.rows[max(first - sent.token_start, 0) : max(end - sent.token_start, 0)]
        gap = min(max(sent.token_start - first, 0), end - first)
        tail = min(max(end - sent_end, 0), end - first - gap)
        if gap or tail:
            parts = (missing_answer(self._spec, gap, "lost"), rows, missing_answer(self._spec, tail, "lost"))
            return np.concatenate(parts)
        return rows

    def request_finished(self, request: Any) -> None:
        """Forget the request. It is also called when one is preempted: that keeps what it was given."""
        super().request_finished(request)
        if request.is_finished():
            self._num_given.pop(request.request_id, None)

    def _first_owed(self, request: Any) -> int:
        given = self._num_given.get(request.request_id)
        if given is not None:
            return given
        return min(int(request.sampling_params.routed_experts_prompt_start), int(request.num_prompt_tokens))


def _wants_routes(request: Any) -> bool:
    parameters = request.sampling_params
    return parameters is not None and bool((parameters.extra_args or {}).get(WANTS, True))
