"""A Qwen3-MoE of transformers as a GPTModel of megatron-core: the same weights, and so the same function."""

from __future__ import annotations

from typing import Any

import torch


def build(model: Any) -> Any:
    """The GPTModel of a float32 Qwen3MoeForCausalLM, on this process's only rank."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    config = _config(model.config)
    gpt = GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm"),
        vocab_size=model.config.vocab_size,
        max_sequence_length=model.config.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=int(model.config.rope_parameters["rope_theta"]),
        share_embeddings_and_output_weights=False,
    )
    gpt.load_state_dict(_weights(model, gpt.state_dict()))
    return gpt


def _config(config: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        ffn_hidden_size=config.intermediate_size,
        moe_ffn_hidden_size=config.moe_intermediate_size,
        num_moe_experts=config.num_experts,
        moe_router_topk=config.num_experts_per_tok,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )


def _weights(model: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Megatron's state dict of the model's weights; what it wants besides tensors is left as it is."""
    weights = {
        "embedding.word_embeddings.weight": model.model.embed_tokens.weight,
        "decoder.final_layernorm.weight": model.model.norm.weight,
        "output_layer.weight": model.lm_head.weight,
    }
    for index, layer in enumerate(model.model.layers):
        named = {
            "input_layernorm.weight": layer.input_layernorm.weight,
            "self_attention.linear_qkv.weight": _qkv(layer.self_attn, model.config),
            "self_attention.q_layernorm.weight": layer.self_attn.q_norm.weight,
            "self_attention.k_layernorm.weight": layer.self_attn.k_norm.weight,
            "self_attention.linear_proj.weight": layer.self_attn.o_proj.weight,
            "pre_mlp_layernorm.weight": layer.post_attention_layernorm.weight,
            "mlp.router.weight": layer.mlp.gate.weight,
        }
        experts = layer.mlp.experts
        for expert in range(model.config.num_experts):
            local = f"mlp.experts.local_experts.{expert}"
            named[f"{local}.linear_fc1.weight"] = experts.gate_up_proj[expert]
            named[f"{local}.linear_fc2.weight"] = experts.down_proj[expert]
        weights.update({f"decoder.layers.{index}.{name}": weight for name, weight in named.items()})
    tensors = {name for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    if tensors != weights.keys():
        raise KeyError(f"weights of a GPTModel: {sorted(tensors ^ weights.keys())} are on one side only")
    return {**wanted, **{name: weight.detach() for name, weight in weights.items()}}


def _qkv(attention: Any, config: Any) -> torch.Tensor:
    """Megatron's fused weight: for each group its queries' heads, its key, its value."""
    groups = config.num_key_value_heads
    parts = [
        one.weight.reshape(groups, -1, config.hidden_size)
        for one in (attention.q_proj, attention.k_proj, attention.v_proj)
    ]
    return torch.cat(parts, dim=1).reshape(-1, config.hidden_size)
