"""The plug-in: what vLLM loads through its entry point `vllm.general_plugins`, in every one of its processes.

It fills a gap: where vLLM serves with Model Runner V2 its own capture stays in charge; with the V1 runner on
the CPU, which vLLM refuses, routes come from moetape. The switch is vLLM's own,
--enable-return-routed-experts.
"""

from __future__ import annotations

import logging

__all__ = ["register"]

logger = logging.getLogger("vllm.moetape")


def register() -> None:
    """Patch this process's vLLM, once. A vLLM that is not known stays as it is, and the log says so.

    It never raises: vLLM would not start, of whatever version it is and whether routes are asked for or not.
    """
    import vllm
    from vllm.platforms import current_platform

    from moetape import UnsupportedError
    from moetape.engines.vllm.sources import check_sources

    if not current_platform.is_cpu():
        return
    try:
        check_sources(vllm.__version__)
        from moetape.engines.vllm import patches

        patches.apply()
    except (UnsupportedError, ImportError) as error:
        logger.warning("moetape: no routes on the CPU from this vLLM: %s", error)
