"""Small random checkpoints with a byte-level tokenizer, and what transformers routes in float32 with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
TIE = 1e-5  # closer scores than this may be ordered either way

QWEN = dict(moe_intermediate_size=32, norm_topk_prob=True)
KINDS: dict[str, dict[str, Any]] = {
    "plain": dict(num_hidden_layers=4, num_experts=16, num_experts_per_tok=4, **QWEN),
    # Two dense layers, and more experts than a byte can count.
    "wide": dict(num_hidden_layers=6, num_experts=300, num_experts_per_tok=3, mlp_only_layers=[0, 3], **QWEN),
    # Of two kinds of layers: the KV cache has a group of blocks for each.
    "sliding": dict(
        model_type="gpt_oss",
        num_hidden_layers=4,
        num_local_experts=16,
        num_experts_per_tok=4,
        intermediate_size=64,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
}


def make_checkpoint(folder: Path, kind: str, **over: Any) -> Path:
    torch.manual_seed(0)
    settings = {
        "model_type": "qwen3_moe",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 1024,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **KINDS[kind],
        **over,
    }
    config = AutoConfig.for_model(**settings)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    specials = ["<pad>", "<bos>", "<eos>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"<x{i}>" for i in range(VOCABULARY - len(specials) - len(alphabet))]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(specials + alphabet + filler)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    return fast


def num_experts(config: Any) -> int:
    return int(config.num_local_experts if config.model_type == "gpt_oss" else config.num_experts)


class Reference:
    """What transformers routes, token by token, when a sequence is fed by itself."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.config = self._model.config
        self._dense = getattr(self.config, "mlp_only_layers", None) or []
        self._id_type = np.uint8 if num_experts(self.config) <= 256 else np.uint16
        self.num_rows = self.num_ties = 0
        self._scores = cache(self._scores_of)

    def check(self, tokens: list[int], routed_experts: np.ndarray, start: int = 0) -> None:
        """Hold rows from `start` on against the reference, as sets. Ties may differ, and are counted."""
        layers = [layer for layer in range(self.config.num_hidden_layers) if layer not in self._dense]
        k, rows = self.config.num_experts_per_tok, len(tokens) - 1 - start
        assert routed_experts.shape == (rows, self.config.num_hidden_layers, k)
        assert routed_experts.dtype == self._id_type
        dense = np.delete(routed_experts, layers, axis=1)
        assert not dense.any()
        if rows == 0:
            return
        scores = self._scores(tuple(tokens[:-1]))[start:]
        order = np.argsort(-scores, axis=-1, kind="stable")
        expected = np.sort(order[..., :k], axis=-1)
        got = np.sort(routed_experts[:, layers].astype(np.int64), axis=-1)
        differ = (expected != got).any(axis=-1)
        top = np.take_along_axis(scores, order, axis=-1)
        tied = top[..., k - 1] - top[..., k] < TIE
        wrong = np.argwhere(differ & ~tied)
        assert not len(wrong), (
            f"rows and layers {wrong[:4].tolist()} of {rows} (from {start}): expected "
            f"{expected[tuple(wrong[0])].tolist()}, got {got[tuple(wrong[0])].tolist()}"
        )
        self.num_rows += rows
        self.num_ties += int(differ.any(axis=-1).sum())

    def embeddings(self, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return self._model.get_input_embeddings()(torch.tensor(tokens))

    def _scores_of(self, fed: tuple[int, ...]) -> np.ndarray:
        with torch.no_grad():
            output = self._model(torch.tensor([fed]), output_router_logits=True)
        return np.stack([logits.float().softmax(-1).numpy() for logits in output.router_logits], axis=1)
