"""Routers of torch models: how to find them, watch them and tell them what to choose.

    routers = moetape.models.find_routers(model)       # ascending by global layer index
    spec = moetape.models.spec_of(model)
    hook = moetape.models.interceptor(routers[0])
    handle = hook.add_tap(lambda layer, ids: ...)      # what the experts receive, [n, K]
    handle = hook.add_forcer(lambda layer, scores, live_values, live_ids: ids or None)
    handle.remove()                                    # the module is as it was

Needs torch; imports no engine and no trainer.
"""

from moetape.models.binding import Binding, bind
from moetape.models.device import capture_ids, current_stream, device_of
from moetape.models.intercept import (
    Forcer,
    Handle,
    Interceptor,
    Tap,
    interceptor,
    num_intercepted,
    remove_all,
)
from moetape.models.override import Override, outside_of_graphs
from moetape.models.routers import Router, find_routers, model_name, spec_of, spec_of_routers

__all__ = [
    "Binding",
    "Forcer",
    "Handle",
    "Interceptor",
    "Override",
    "Router",
    "Tap",
    "bind",
    "capture_ids",
    "current_stream",
    "device_of",
    "find_routers",
    "interceptor",
    "model_name",
    "num_intercepted",
    "outside_of_graphs",
    "remove_all",
    "spec_of",
    "spec_of_routers",
]
