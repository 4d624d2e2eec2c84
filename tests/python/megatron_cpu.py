"""Megatron-core on a CPU, for tests: stand-ins for CUDA, and a tiny GPT with experts.

The packages lie in .cache/peers (`make peers`); two versions never meet in one process, so tests run in
processes of their own (megatron_run.py). Import this where one of them is on the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

VOCAB = 64


class _Event:
    """torch.cuda.Event for a machine that has none: everything is done at once."""

    def __init__(self, **_: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...


class _Stream:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()


def stand_in_for_cuda() -> None:
    """Make the calls of torch.cuda that Megatron makes without need do nothing here."""
    cpu = torch.device("cpu")
    cuda: Any = torch.cuda
    cuda.current_device = lambda: cpu
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.current_stream = lambda device=None: _Stream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.synchronize = lambda device=None: None
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda device="cpu": torch.get_rng_state()
        module.set_rng_state = lambda state, device="cpu": torch.set_rng_state(state)
    cuda._lazy_call = lambda call, **_: None  # by which Megatron sets a device's generator
    plain_zeros = torch.zeros
    torch.zeros = lambda *size, device=None, **rest: plain_zeros(
        *size, device=cpu if device == "cuda" else device, **rest
    )
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    # Its own refuses sequence parallelism, whose gradients of norms are summed after all backward passes.
    norm: Any = WrappedTorchNorm
    norm.__new__ = lambda cls, config, hidden_size, eps=1e-5, **_: getattr(torch.nn, config.normalization)(
        hidden_size, eps=eps
    )
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # 0.16.1 asks for it without Transformer Engine
    # The permuted tensor's sizes are read from tensors of the device; on gloo they must be lists.
    plain = torch.distributed.all_to_all_single

    def all_to_all_single(
        output: Any, source: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **rest: Any
    ) -> Any:
        def listed(sizes: Any) -> Any:
            return sizes if sizes is None else [int(size) for size in sizes]

        return plain(output, source, listed(output_split_sizes), listed(input_split_sizes), **rest)

    torch.distributed.all_to_all_single = all_to_all_single


@contextlib.contextmanager
def parallel(**sizes: int) -> Iterator[Any]:
    """Megatron's process groups of some sizes, over the world of this process: parallel_state."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

    groups = torch.distributed.distributed_c10d._world.pg_map
    before = set(groups)
    parallel_state.initialize_model_parallel(**sizes)
    made = set(groups) - before
    get_cuda_rng_tracker().reset()
    model_parallel_cuda_manual_seed(17)
    try:
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
        # Megatron forgets its groups, whose threads would go on: hundreds after a few set-ups.
        for group in made & set(groups):
            torch.distributed.destroy_process_group(group)


def config(**changes: Any) -> Any:
    """A TransformerConfig of two MoE layers, 8 experts, 2 for each token."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 16,
        "ffn_hidden_size": 32,
        "num_attention_heads": 4,
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 16,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "add_bias_linear": False,
        "use_cpu_initialization": True,
        "init_method_std": 0.3,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
    }
    settings.update(changes)
    return TransformerConfig(**settings)


def gpt(settings: Any, seed: int = 3, vp_stage: int | None = None, **arguments: Any) -> Any:
    """A GPTModel; the same weights for the same seed."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    torch.manual_seed(seed)
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage)
    return GPTModel(
        settings,
        get_gpt_decoder_block_spec(settings, use_transformer_engine=False, vp_stage=vp_stage),
        vocab_size=VOCAB,
        max_sequence_length=64,
        pre_process=first,
        post_process=last,
        vp_stage=vp_stage,
        **arguments,
    )


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def forward(model: Any, ids: torch.Tensor) -> Any:
    """One causal forward over tokens [batch, length]: the loss of each token (or the stage's output)."""
    batch, length = ids.shape
    positions = torch.arange(length).expand(batch, length)
    hidden = torch.ones(batch, 1, length, length).tril() < 0.5
    return model(ids, positions, hidden, labels=ids)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """The gradients by parameter name; the model's own are cleared."""
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def same_gradients(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class _Recorder:
    """Stands as router.router_replay and keeps what the router chose, in the order of its columns."""

    def __init__(self) -> None:
        self.ids: list[torch.Tensor] = []

    def get_replay_topk(
        self, scores: Any, topk: int, num_groups: Any = None, group_topk: Any = None, compute: Any = None
    ) -> Any:
        values, ids = compute(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if torch._C._current_graph_task_id() == -1:  # recomputing chooses the same again
            self.ids.append(ids.detach().clone())
        return values, ids


def routers(model: Any) -> dict[int, Any]:
    """The routers of the decoder by layer."""
    found = [(name, one) for name, one in model.named_modules() if hasattr(one, "router_replay")]
    return {one.layer_number - 1: one for name, one in found if "mtp" not in name}


@contextlib.contextmanager
def recorded(model: Any) -> Iterator[dict[int, list[torch.Tensor]]]:
    """What the routers of a model chose in the block's forwards, {layer: [ids [rows, k] of each]}."""
    replaced = {layer: (router, router.router_replay) for layer, router in routers(model).items()}
    recorders = {layer: _Recorder() for layer in replaced}
    ids = {layer: recorder.ids for layer, recorder in recorders.items()}
    for layer, (router, _) in replaced.items():
        router.router_replay = recorders[layer]
    try:
        yield ids
    finally:
        for router, before in replaced.values():
            router.router_replay = before


@contextlib.contextmanager
def dispatched(model: Any) -> Iterator[dict[int, list[torch.Tensor]]]:
    """The maps bool [rows, experts] that the dispatchers received in the block, {layer: [of each call]}."""
    maps: dict[int, list[torch.Tensor]] = {}
    wrapped = []
    for module in model.modules():
        if type(module).__name__ != "MoELayer":
            continue
        dispatcher, layer = module.token_dispatcher, module.layer_number - 1

        def tap(
            hidden: Any,
            routing_map: Any,
            probs: Any,
            plain: Any = dispatcher.dispatch_preprocess,
            layer: int = layer,
        ) -> Any:
            maps.setdefault(layer, []).append(routing_map.clone())
            return plain(hidden, routing_map, probs)

        dispatcher.dispatch_preprocess = tap
        wrapped.append(dispatcher)
    try:
        yield maps
    finally:
        for dispatcher in wrapped:
            del dispatcher.dispatch_preprocess


def map_of(ids: Any, num_experts: int = 8) -> torch.Tensor:
    ids = torch.as_tensor(ids, dtype=torch.int64)
    return torch.zeros(len(ids), num_experts, dtype=torch.bool).scatter(1, ids, True)


def step(data_iterator: Any, model: Any) -> Any:
    """Megatron's forward step over an iterator of token batches."""
    return forward(model, next(data_iterator)), mean_loss


def mean_loss(output: torch.Tensor) -> Any:
    loss = output.mean()
    return loss, {"loss": loss.detach()}
