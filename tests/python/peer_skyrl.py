"""How SkyRL 0.4.0 packs a batch, run from its own files."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import torch

from peer_code import peer_code

PACKAGE = "skyrl-0.4.0"
ROOM = "skyrl/backends/skyrl_train/"


def align_code() -> SimpleNamespace:
    """To what lengths it pads."""
    return peer_code(
        PACKAGE,
        ROOM + "distributed/megatron/packing_utils.py",
        "get_packed_seq_align_size",
        "get_unpacked_seq_align_size",
        "_fp8_token_align",
        math=math,
        AUTO_FP8_RECIPE="auto",
        is_mxfp8_recipe=lambda recipe: recipe == "mxfp8",
    )


def packed_code() -> SimpleNamespace:
    """PackedTensor."""
    return peer_code(
        PACKAGE,
        ROOM + "utils/packed_tensor.py",
        "PackedTensor",
        "cu_seqlens_from_lengths",
        "lengths_from_offsets",
        "CU_SEQLENS_DTYPE",
        torch=torch,
    )


def layout_code(align: SimpleNamespace) -> SimpleNamespace:
    """Where a token's metadata goes."""
    return peer_code(
        PACKAGE,
        ROOM + "distributed/megatron/token_metadata.py",
        "TokenMetadataLayout",
        "build_token_metadata_layout",
        "align_packed_token_metadata",
        "align_token_metadata",
        "_align_token_rows",
        "_new_metadata_tensor",
        torch=torch,
        dataclass=dataclasses.dataclass,
        __name__=__name__,
        **vars(align),
    )
