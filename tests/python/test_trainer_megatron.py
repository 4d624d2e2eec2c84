"""Replay in Megatron models; each test runs in processes with one version of megatron-core."""

from __future__ import annotations

import os

import pytest

from megatron_run import VERSIONS, check, names

pytest.importorskip("torch")


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
                marks=pytest.mark.xdist_group(f"megatron-{version}-{world}"),
            )
            for version in versions
            for module in modules
            for name in names(module)
        ],
    )


@on_ranks(
    1,
    "megatron_one_rank_tests",
    "megatron_policy_tests",
    "megatron_refusal_tests",
    "megatron_names_tests",
    "megatron_device_tests",
)
def test_on_one_rank(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)


@on_ranks(2, "megatron_two_rank_tests", "megatron_product_tests")
def test_on_two_ranks(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)


@on_ranks(
    4, "megatron_four_rank_tests", versions=VERSIONS if "MOETAPE_TEST_FULL" in os.environ else VERSIONS[-1:]
)
def test_on_four_ranks(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)
