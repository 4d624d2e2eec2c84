"""Small random models of every Mixture-of-Experts type of transformers whose routers we replay.

zoo(name) -> model. A type is made small by one rule for all, FIELDS, and by what it needs beyond, TYPES.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# What is set wherever a configuration has a field of this name.
FIELDS: dict[str, Any] = {
    "vocab_size": 97,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "attention_dropout": 0.0,
    "intermediate_size": 48,
    "ffn_hidden_size": 48,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 16,
    "moe_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 16,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "sliding_window": 16,
    "sliding_window_size": 16,
}
_GROUPS = {"n_group": 4, "topk_group": 2}
_DENSE_FIRST = ["dense", "sparse", "sparse", "sparse"]
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_LATENT = {"num_key_value_heads": 4}  # multi-head latent attention: every head has its own key

TYPES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_5_moe_text": {},
    "qwen3_vl_moe_text": {},
    "gpt_oss": {},
    "olmoe": {},
    "flex_olmo": {},
    "deepseek_v2": {**_LATENT, "topk_method": "group_limited_greedy", **_GROUPS},
    "deepseek_v3": {**_LATENT, **_GROUPS, "first_k_dense_replace": 1},
    "deepseek_v32": {**_LATENT, **_GROUPS, "mlp_layer_types": _DENSE_FIRST},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    },
    "ernie4_5_moe": {},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [16, 16],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    },
    "hunyuan_v1_moe": {},
    "minimax": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "cohere2_moe": {},
    "mellum": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granitemoehybrid": {
        **_MAMBA,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "granitemoe_swa": {},
    "longcat_flash": {**_LATENT, "zero_expert_num": 4},
    "glm4_moe": {},
    "glm4_moe_lite": {**_LATENT},
    "glm4v_moe_text": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
    },
    "glm_moe_dsa": {**_LATENT, "mlp_layer_types": _DENSE_FIRST},
    "glm5_next_text": {**_LATENT, "qk_rope_head_dim": 0, "mlp_layer_types": _DENSE_FIRST},
    "dots1": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "exaone_moe": {},
    "afmoe": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "laguna": {},
    "mimo_v2_flash": {},
    "solar_open": {},
    "qwen3_omni_moe_text": {},
    "step3p5": {"moe_router_scaling_factor": 1.0},
    "kimi_linear": {**_LATENT},
    "hy_v3": {},
    "hy_v4": {**_LATENT},
    "axk1": {**_LATENT, **_GROUPS},
    "axk2": {**_LATENT},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 8,
    },
    "mistral4": {**_LATENT, "head_dim": 16},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "deepseek_ocr2_text": {"mlp_layer_types": _DENSE_FIRST, "num_experts_per_tok": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "hc_count": 2,
        "hc_lowrank": 8,
        "ple_embed_dim": 16,
    },
    "aria_text": {},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "vocab_size_per_layer_input": 97,
        "hidden_size_per_layer_input": 8,
    },
    "inkling_text": {},
    "llama4_text": {"num_experts_per_tok": 1},
    "jetmoe": {},
    "jamba": {
        **_MAMBA,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
}


# Text models that transformers builds only as a part of others.
PARTS = {
    "deepseek_ocr2_text": ("deepseek_ocr2", "DeepseekOcr2TextConfig", "DeepseekOcr2TextModel"),
    "ernie4_5_vl_moe_text": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeTextConfig", "Ernie4_5_VLMoeTextModel"),
    "qwen3_omni_moe_text": ("qwen3_omni_moe", "Qwen3OmniMoeTextConfig", "Qwen3OmniMoeThinkerTextModel"),
    "step3p5": ("step3p7", "Step3p7TextConfig", "Step3p7TextModel"),
}
# Refused by name: two routers in one layer.
REFUSED = {
    "jetmoe": "JetMoeAttention.*two routers",
    "ernie4_5_vl_moe_text": r"text_moe\.gate and .*vision_moe\.gate",
}
EXCLUDED = {"deepseek_v4": {0: "hash-routed"}}


def zoo(name: str) -> Any:
    """A seeded random model in float32, in training mode, whose routers and experts matter for its output."""
    torch.manual_seed(0)
    if name in PARTS:
        folder, config_class, model_class = PARTS[name]
        config_module = import_module(f"transformers.models.{folder}.configuration_{folder}")
        kind = getattr(config_module, config_class)
        model_module = import_module(f"transformers.models.{folder}.modeling_{folder}")
        model = getattr(model_module, model_class)(_small(kind, name))
    else:
        config = _small(CONFIG_MAPPING[name], name)
        has_head = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        auto = transformers.AutoModelForCausalLM if has_head else transformers.AutoModel
        model = auto.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.2)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.uniform_(0.0, 0.1)
    return model.train()


def vision_language_model() -> Any:
    """A whole Qwen3-VL-MoE; token 90 stands for a patch of an image, 91 and 92 around them."""
    torch.manual_seed(0)
    text = _small(CONFIG_MAPPING["qwen3_vl_moe_text"], "qwen3_vl_moe_text").to_dict()
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 4,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    }
    config = transformers.Qwen3VLMoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=90,
        vision_start_token_id=91,
        vision_end_token_id=92,
        video_token_id=93,
    )
    return transformers.Qwen3VLMoeForConditionalGeneration(config).train()


def _small(kind: Any, name: str) -> Any:
    known = kind().to_dict()
    return kind(**{field: value for field, value in FIELDS.items() if field in known} | TYPES[name])
