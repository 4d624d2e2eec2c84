"""Recording plain forwards: batches, caches, chunks, padding on either side, training."""

from __future__ import annotations

import copy
import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import moetape
from engine_helpers import alone, assert_same_experts, assert_untouched, prompts
from moetape.engines.transformers import record
from moetape.engines.transformers.rows import Lease
from tiny_models import KINDS, tiny
from toy_moe import Router, toy


def row(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 97, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_never_recorded(kind: str, side: str) -> None:  # case A18
    model, inputs = tiny(kind), prompts()
    if side == "right":
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    with record(model) as recording:
        model(**inputs, use_cache=False)
    assert [routes.end for routes in recording.routes] == [3, 7, 5]
    for index, routes in enumerate(recording.routes):
        tokens = inputs["input_ids"][index][inputs["attention_mask"][index] == 1].tolist()
        assert routes.tokens.tolist() == tokens
        if side == "right":  # left padding shifts positions here, so that ids may differ
            assert_same_experts(routes, alone(model, tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_follow_their_cache(kind: str) -> None:  # case C12
    model, ids = tiny(kind), row(12)
    with record(model) as recording:
        cache = None
        for first, end in [(0, 5), (5, 6), (6, 10), (10, 12)]:
            cache = model(ids[:, first:end], past_key_values=cache, use_cache=True).past_key_values
    (routes,) = recording.routes
    assert routes.tokens.tolist() == ids[0].tolist()
    assert routes.complete
    assert_same_experts(routes, alone(model, ids[0].tolist()))


def test_interleaved_caches_are_told_apart() -> None:
    model = tiny("qwen3_moe")
    a, b = row(8, seed=1), row(9, seed=2)
    with record(model, num_slots=4) as recording:
        cache_a = model(a[:, :3]).past_key_values
        cache_b = model(b[:, :2]).past_key_values
        for chunk_a, chunk_b in [(slice(3, 6), slice(2, 5)), (slice(6, 8), slice(5, 9))]:
            cache_a = model(a[:, chunk_a], past_key_values=cache_a).past_key_values
            cache_b = model(b[:, chunk_b], past_key_values=cache_b).past_key_values
    assert [routes.tokens.tolist() for routes in recording.routes] == [a[0].tolist(), b[0].tolist()]
    for routes, ids in zip(recording.routes, (a, b), strict=True):
        assert_same_experts(routes, alone(model, ids[0].tolist()))


def test_a_cache_made_outside_and_empty_is_followed() -> None:
    model, ids = tiny("qwen3_moe"), row(6)
    with record(model) as recording:
        cache = transformers.DynamicCache(config=model.config)
        model(ids[:, :4], past_key_values=cache)
        model(ids[:, 4:], past_key_values=cache)
    assert [routes.tokens.tolist() for routes in recording.routes] == [ids[0].tolist()]


def test_a_cropped_cache_forgets_its_tail() -> None:  # case C04
    model, ids, other = tiny("qwen3_moe"), row(8), row(3, seed=5)
    with record(model) as recording:
        cache = model(ids).past_key_values
        cache.crop(-3)
        model(other, past_key_values=cache)
    tokens = ids[0, :5].tolist() + other[0].tolist()
    (routes,) = recording.routes
    assert routes.tokens.tolist() == tokens
    assert_same_experts(routes, alone(model, tokens))


def test_a_cropped_cache_counts_at_once() -> None:  # case C04
    model, ids = tiny("qwen3_moe"), row(8)
    with record(model) as recording:
        cache = model(ids).past_key_values
        cache.crop(-3)
        assert recording.routes[0].end == 5
    assert recording.routes[0].end == 5


@pytest.mark.parametrize("length", [2, 5])
def test_a_cache_used_again_keeps_the_rows_of_its_first_sequence(length: int) -> None:  # case C04
    model, first, second = tiny("qwen3_moe"), row(4), row(length, seed=5)
    with record(model) as recording:
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        for ids in (first, second):
            cache.reset()
            model(ids, past_key_values=cache)
        model(first[:, :1], past_key_values=cache)
        during = [routes.tokens.tolist() for routes in recording.routes]
    expected = [first[0].tolist(), [*second[0].tolist(), int(first[0, 0])]]
    assert [routes.tokens.tolist() for routes in recording.routes] == during == expected
    for routes, tokens in zip(recording.routes, expected, strict=True):
        assert_same_experts(routes, alone(model, tokens))


def test_a_cache_used_again_elsewhere_keeps_the_rows_of_its_first_sequence() -> None:  # case C04
    model, other, ids = tiny("qwen3_moe"), tiny("qwen3_moe", seed=1), row(4)
    with record(model) as recording:
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        model(ids, past_key_values=cache)
        cache.reset()
        other(ids[:, :2], past_key_values=cache)
    assert [routes.tokens.tolist() for routes in recording.routes] == [ids[0].tolist()]


def test_masks_may_be_of_any_numbers() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    with record(model) as recording:
        model(inputs["input_ids"], inputs["attention_mask"].to(torch.bfloat16))
    assert [routes.end for routes in recording.routes] == [3, 7, 5]


def test_a_hook_that_fails_leaves_nothing_hooked() -> None:
    model = tiny("qwen3_moe")
    recording = record(model)
    *_, last = moetape.models.find_routers(model)
    mistaken = moetape.models.interceptor(dataclasses.replace(last, layer=7)).add_tap(lambda *_: None)
    with pytest.raises(moetape.InvalidArgumentError, match="as attached"), recording:
        pass
    mistaken.remove()
    assert_untouched(model)
    with recording:
        model(row(3))
    assert [routes.end for routes in recording.routes] == [3]


@pytest.mark.parametrize("by_name", [False, True])
def test_reordered_repeated_and_selected_caches(by_name: bool) -> None:
    model = tiny("qwen3_moe")

    def call(method: Any, name: str, argument: Any) -> None:
        method(**{name: argument}) if by_name else method(argument)

    ids = torch.cat([row(4, seed=seed) for seed in range(3)])
    tail = torch.tensor([[10], [11], [12], [13]])
    with record(model) as recording:
        cache = model(ids).past_key_values
        call(cache.reorder_cache, "beam_idx", torch.tensor([2, 0, 1]))
        call(cache.batch_select_indices, "indices", torch.tensor([0, 2]))
        call(cache.batch_repeat_interleave, "repeats", 2)
        model(tail, past_key_values=cache)
    expected = [ids[parent].tolist() + tail[i].tolist() for i, parent in enumerate([2, 2, 1, 1])]
    assert [routes.tokens.tolist() for routes in recording.routes] == expected
    for routes, tokens in zip(recording.routes, expected, strict=True):
        assert_same_experts(routes, alone(model, tokens))


def test_cache_methods_are_as_before_afterwards() -> None:
    names = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "reset")
    before = [getattr(transformers.Cache, name) for name in names]
    model = tiny("qwen3_moe")
    with record(model), record(model):
        cache = model(row(3)).past_key_values
    assert [getattr(transformers.Cache, name) for name in names] == before
    assert not [name for name in cache.__dict__ if "moetape" in name]


def test_a_cache_fed_outside_the_recording_is_an_error() -> None:
    model, ids = tiny("qwen3_moe"), row(8)
    with record(model):
        cache = model(ids[:, :4]).past_key_values
        model.model.layers[0].self_attn(
            hidden_states=torch.zeros(1, 1, 32),
            position_embeddings=model.model.rotary_emb(torch.zeros(1, 1, 32), torch.tensor([[4]])),
            attention_mask=None,
            past_key_values=cache,
        )
        with pytest.raises(moetape.ConflictError, match=r"4 columns that were recorded, got 5"):
            model(ids[:, 4:], past_key_values=cache)


def test_another_batch_on_a_cache_is_refused() -> None:
    model = tiny("qwen3_moe")
    with record(model):
        cache = model(row(4)).past_key_values
        with pytest.raises(moetape.UnsupportedError, match="the 1 sequences of its cache, got 2"):
            model(torch.cat([row(2), row(2)]), past_key_values=cache)


def test_a_mask_without_the_past_is_refused() -> None:
    model = tiny("qwen3_moe")
    with record(model):
        cache = model(row(4)).past_key_values
        with pytest.raises(moetape.WrongShapeError, match=r"attention_mask: expected \[1, 6\], got \[1, 2\]"):
            model(row(2), attention_mask=torch.ones(1, 2), past_key_values=cache)


def test_a_mask_that_hides_padding_is_refused() -> None:
    model = tiny("qwen3_moe")
    with record(model), pytest.raises(moetape.UnsupportedError, match="2-D attention_mask"):
        model(row(4), attention_mask=torch.zeros(1, 1, 4, 4))


def test_packed_sequences_are_refused() -> None:
    model = tiny("qwen3_moe")
    with record(model) as recording:
        with pytest.raises(moetape.UnsupportedError, match="packed sequences"):
            model(row(5), position_ids=torch.tensor([[0, 1, 2, 0, 1]]))
        with pytest.raises(moetape.UnsupportedError, match=r"packed sequences \(cu_seq_lens_q\)"):
            model(row(5), cu_seq_lens_q=torch.tensor([0, 3, 5]))
    assert recording.routes == []


def test_positional_arguments_are_understood() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    with record(model) as recording:
        model(inputs["input_ids"], inputs["attention_mask"])
    assert [routes.end for routes in recording.routes] == [3, 7, 5]


def test_an_inner_module_called_by_itself_is_an_error() -> None:  # case H03
    model = tiny("qwen3_moe")
    with record(model), pytest.raises(moetape.UnsupportedError, match="outside of a forward"):
        model.model(row(3))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_recorded_twice(reentrant: bool) -> None:  # case I03
    model = tiny("qwen3_moe").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    ids = row(6)
    with record(model) as recording:
        model(ids, use_cache=False).logits.sum().backward()
        model(ids, use_cache=False)
    assert [routes.end for routes in recording.routes] == [6, 6]
    assert np.array_equal(recording.routes[0].ids, recording.routes[1].ids)
    assert next(model.parameters()).grad is not None


def test_one_forward_at_a_time() -> None:
    model = tiny("qwen3_moe")
    inside, leave = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        assert leave.wait(timeout=60)

    with record(model) as recording:
        hook = model.model.norm.register_forward_pre_hook(wait)
        thread = threading.Thread(target=lambda: model(row(4)))
        thread.start()
        assert inside.wait(timeout=60)
        with pytest.raises(moetape.UnsupportedError, match="one forward at a time"):
            model(row(3))
        leave.set()
        thread.join()
        hook.remove()
    assert [routes.end for routes in recording.routes] == [4]


def test_a_layer_that_did_not_run_is_an_error_and_named() -> None:  # case H01, case H04
    model = tiny("qwen3_moe")
    layers = model.model.layers
    model.model.config.num_hidden_layers = 2  # the forward stops before the last layer
    with record(model) as recording:
        with pytest.raises(moetape.NotCapturedError, match="2"):
            model(row(3))
        assert recording.routes == []
    model.model.config.num_hidden_layers = len(layers)


def test_dense_models_warn_and_have_no_routes() -> None:  # case J01, case J04
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM is a dense model"), record(model) as recording:
        model.generate(row(3), max_new_tokens=2)
    assert recording.routes is None
    assert recording.memory_bytes == 0
    assert_untouched(model)


def test_refuses_models_that_cannot_be_recorded() -> None:
    switch = transformers.SwitchTransformersConfig(
        vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2, num_experts=2
    )
    with pytest.raises(moetape.UnsupportedError, match="SwitchTransformersForConditionalGeneration"):
        record(transformers.SwitchTransformersForConditionalGeneration(switch))
    with pytest.raises(moetape.UnsupportedError, match="compiled"):
        record(torch.compile(toy(Router())))


def compiled(model: Any, part: str) -> Any:
    """What to call for a forward of which a part is compiled."""
    if part == "layers":
        for layer in model.model.layers:
            layer.compile(backend="eager")
        return model
    if part == "caller":
        return torch.compile(lambda ids, **options: model(ids, **options), backend="eager")
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("part", ["model", "layers", "caller"])
def test_compiled_parts_step_aside_while_recorded(part: str) -> None:
    torch._dynamo.reset()
    model, ids = tiny("qwen3_moe"), row(4)
    call = compiled(model, part)
    with torch.no_grad():
        plain = call(ids, use_cache=False).logits
        for seed in (1, 2):
            with record(model) as recording:
                assert torch.equal(call(ids, use_cache=False).logits, plain)
                call(row(5, seed), use_cache=False)
            first, second = recording.routes
            assert_same_experts(first, alone(model, ids[0].tolist()))
            assert_same_experts(second, alone(model, row(5, seed)[0].tolist()))
            assert_untouched(model)
        assert torch.equal(call(ids, use_cache=False).logits, plain)
    torch._dynamo.reset()


def test_a_lease_that_was_never_made_lets_go_of_nothing() -> None:
    Lease.__new__(Lease).__del__()


def test_nothing_recorded_is_an_empty_list() -> None:  # case J04
    with moetape.engines.transformers.record(tiny("qwen3_moe")) as recording:
        pass
    assert recording.routes == []


def test_a_forward_without_tokens_is_an_error() -> None:
    model = toy(Router())
    with record(model), pytest.raises(moetape.InvalidArgumentError, match="input_ids or inputs_embeds"):
        model(torch.zeros(2, 6))


def test_a_copied_cache_goes_its_own_way() -> None:
    model, ids = tiny("qwen3_moe"), row(4)
    tails = [row(2, seed=seed) for seed in (1, 2)]
    with record(model) as recording, torch.no_grad():
        cache = model(ids).past_key_values
        copied = copy.deepcopy(cache)
        model(tails[0], past_key_values=cache)
        model(tails[1], past_key_values=copied)
    assert [routes.tokens.tolist() for routes in recording.routes] == [
        torch.cat([ids, tail], dim=1)[0].tolist() for tail in tails
    ]
