"""Tests that run in processes of their own (megatron_run.py), as pytest sees them."""

from __future__ import annotations

import pytest

from megatron_run import VERSIONS, names


def on_ranks(world: int, *modules: str, versions: list[str] = VERSIONS) -> pytest.MarkDecorator:
    """Each test of the modules with each version; those of one run stay in one worker."""
    return pytest.mark.parametrize(
        ("version", "world", "modules", "name"),
        [
            pytest.param(
                version,
                world,
                modules,
                name,
                id=f"{name}-{version}",
                marks=pytest.mark.xdist_group(f"{modules[0]}-{version}"),
            )
            for version in versions
            for module in modules
            for name in names(module)
        ],
    )
