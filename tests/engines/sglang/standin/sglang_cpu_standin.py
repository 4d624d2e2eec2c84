"""A plug-in of SGLang's own that lets it run on a machine without a GPU: host memory that is not pinned."""

from typing import Any

import torch


def activate() -> None:
    from sglang.srt.mem_cache.pool_host import common

    def allocate(
        dims: Any, dtype: torch.dtype, device: str, *unused: Any, **also_unused: Any
    ) -> torch.Tensor:
        return torch.empty(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = allocate


def break_moetape() -> None:
    """Let moetape's recorder fail in layer 2, where a test asks for it by MOETAPE_TEST_BREAK."""
    import os

    if os.environ.get("MOETAPE_TEST_BREAK") != "capture":
        return
    from moetape.engines.sglang.staging import HostStaging

    capture = HostStaging.capture

    def broken(self: HostStaging, layer: int, ids: torch.Tensor) -> None:
        if layer == 2:
            raise RuntimeError("broken on purpose")
        capture(self, layer, ids)

    HostStaging.capture = broken  # type: ignore[method-assign]
