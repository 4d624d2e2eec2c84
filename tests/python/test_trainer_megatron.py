"""Replay in Megatron models; each test runs in processes with one version of megatron-core."""

from __future__ import annotations

import pytest

from megatron_run import VERSIONS, check, names

pytest.importorskip("torch")


def on_ranks(world: int, module: str) -> pytest.MarkDecorator:
    """Each test of a module with each version; those of one run stay in one worker."""
    return pytest.mark.parametrize(
        ("version", "world", "module", "name"),
        [
            pytest.param(
                version,
                world,
                module,
                name,
                id=f"{name}-{version}",
                marks=pytest.mark.xdist_group(f"{module}-{version}-{world}"),
            )
            for version in VERSIONS
            for name in names(module)
        ],
    )


@on_ranks(1, "megatron_one_rank_tests")
def test_on_one_rank(version: str, world: int, module: str, name: str) -> None:
    check(version, world, module, name)


@on_ranks(2, "megatron_two_rank_tests")
def test_on_two_ranks(version: str, world: int, module: str, name: str) -> None:
    check(version, world, module, name)


@on_ranks(2, "megatron_product_tests")
def test_the_product_on_two_ranks(version: str, world: int, module: str, name: str) -> None:
    check(version, world, module, name)
