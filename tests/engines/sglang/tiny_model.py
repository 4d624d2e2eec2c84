"""A small random Qwen3-MoE that SGLang can serve: 4 layers of 16 experts, 4 a token; a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write(folder: Path, dtype: torch.dtype = torch.float32, **over: float) -> None:
    """Write checkpoint and tokenizer; `over` replaces settings of the configuration."""
    settings = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 1024,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "norm_topk_prob": True,
    }
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**{**settings, **over})
    transformers.Qwen3MoeForCausalLM(config).to(dtype).save_pretrained(folder)
    _tokenizer(config.vocab_size).save_pretrained(folder)


def _tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    words = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<{number}>" for number in range(vocab_size - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
