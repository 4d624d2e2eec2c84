"""Configurations of models, for the two readers of them: moetape.config and the command line."""

from __future__ import annotations

from typing import Any

QWEN3 = dict(
    model_type="qwen3_moe", num_hidden_layers=6, num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1
)

# Rules that tell MoE layers from dense ones: what is said besides 6 layers and top 2, and the MoE layers.
RULES: list[tuple[dict[str, Any], list[int]]] = [
    (dict(n_routed_experts=8, first_k_dense_replace=3), [3, 4, 5]),
    (dict(n_routed_experts=8, first_k_dense_replace=1, moe_layer_freq=2), [2, 4]),
    (dict(n_routed_experts=8, moe_layer_freq=[0, 1, 1, 0, 1, 1]), [1, 2, 4, 5]),
    (dict(num_experts=8, mlp_only_layers=[0, 3], decoder_sparse_step=1), [1, 2, 4, 5]),
    (dict(num_experts=8, mlp_only_layers=[], decoder_sparse_step=2), [1, 3, 5]),
    (dict(num_local_experts=8), [0, 1, 2, 3, 4, 5]),
    (dict(num_local_experts=8, interleave_moe_layer_step=2), [1, 3, 5]),
    (dict(num_local_experts=8, moe_layers=[5, 1]), [1, 5]),
    (dict(moe_num_experts=8, moe_layers_enum="2,3,5"), [2, 3, 5]),
    (dict(num_experts=8, expert_layer_period=2, expert_layer_offset=1), [1, 3, 5]),
    (dict(num_experts=8, num_dense_layers=4), [4, 5]),
    (
        dict(moe_num_experts=8, moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=1),
        [1, 2, 3, 4, 5],
    ),
    (
        dict(moe_num_experts=8, moe_layer_start_index=1, moe_layer_end_index=4, moe_layer_interval=2),
        [1, 3],
    ),
    (dict(num_experts=8, mlp_layer_types=["dense", "sparse"] * 3), [1, 3, 5]),
    (dict(n_routed_experts=8, mlp_layer_types=["dense"] + ["sparse"] * 7), [1, 2, 3, 4, 5]),
    (dict(n_routed_experts=8, layers_block_type=["mamba", "moe", "attention"] * 2), [1, 4]),
    (dict(n_routed_experts=8, hybrid_override_pattern="MEM*EM"), [1, 4]),
]

# Changes of QWEN3, and what the message names.
NOT_UNDERSTOOD: list[tuple[dict[str, Any], str]] = [
    (dict(num_experts_per_tok=None), "moe_topk"),
    (dict(num_experts_per_tok="8"), "num_experts_per_tok: expected an integer"),
    (dict(num_experts_per_tok=[1, 2, 1, 2, 1, 2]), "num_experts_per_tok: expected the same"),
    (dict(num_hidden_layers=None), "num_hidden_layers"),
    (dict(mlp_layer_types=["sparse"]), "mlp_layer_types: expected one item for each of 6"),
    (dict(decoder_sparse_step=0), "decoder_sparse_step"),
    (dict(mlp_only_layers=["a"]), "mlp_only_layers: expected an integer, got 'a'"),
    (dict(mlp_only_layers="0"), "mlp_only_layers: expected a list of layers, got '0'"),
    (dict(mlp_only_layers=3), "mlp_only_layers: expected a list of layers, got 3"),
    (dict(moe_layers=[1.0]), r"moe_layers: expected an integer, got 1\.0"),
    (dict(moe_layers=3), "moe_layers: expected a list of layers, got 3"),
    (dict(moe_layers_enum="1, x,"), "moe_layers_enum: expected an integer, got 'x'"),
    (
        dict(decoder_sparse_step=None, intermediate_size=64, moe_intermediate_size=16),
        "what tells MoE layers from dense ones",
    ),
]
