"""Replay in Megatron models; each test runs in processes with one version of megatron-core."""

from __future__ import annotations

import os

import pytest

from megatron_marks import on_ranks
from megatron_run import VERSIONS, check

pytest.importorskip("torch")


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
