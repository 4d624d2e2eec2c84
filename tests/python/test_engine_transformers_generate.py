"""Recording generate(): what is kept of each returned sequence, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import moetape
from engine_helpers import EOS, alone, assert_recorded, assert_same_experts, assert_untouched, fed_of, prompts
from moetape import models
from moetape.engines.transformers import record
from tiny_models import KINDS, tiny

WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "num_return_sequences": 2},
    {"do_sample": True, "use_cache": False},
    {"prefill_chunk_size": 3},
    {"cache_implementation": "static"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_records_each_returned_sequence(
    kind: str, way: dict[str, Any]
) -> None:  # case C01, case C02, case A18
    model, inputs = tiny(kind), prompts()
    torch.manual_seed(0)
    with record(model, version=3, num_slots=16) as recording:
        output = model.generate(**inputs, max_new_tokens=12, **way)
    assert_recorded(model, recording, output, inputs)
    for routes in recording.routes:
        assert routes.versions == [(0, routes.end, 3)]
        assert routes.spec == models.spec_of(model)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_the_experts_received(kind: str) -> None:
    model, inputs = tiny(kind), prompts((4,))
    received: dict[int, list[torch.Tensor]] = {}
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            layer = int(name.split("layers.")[1].split(".")[0])

            def hook(module: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                (ids,) = (
                    v
                    for v in [*args, *kwargs.values()]
                    if isinstance(v, torch.Tensor) and v.dtype == torch.int64
                )
                received.setdefault(layer, []).append(ids.clone())

            module.register_forward_pre_hook(hook, with_kwargs=True)
    with record(model) as recording:
        model.generate(**inputs, max_new_tokens=8, eos_token_id=None)
    expected = torch.stack([torch.cat(received[layer]) for layer in sorted(received)], dim=1)
    assert np.array_equal(recording.routes[0].ids, expected.numpy())


def test_recording_does_not_change_the_output() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    plain = model.generate(**inputs, max_new_tokens=8)
    with record(model):
        recorded = model.generate(**inputs, max_new_tokens=8)
    assert torch.equal(plain, recorded)


def eos_bias(step_of: dict[int, int], num_prompt: int) -> Any:
    """Makes sequence b sample EOS as its step_of[b]-th token, and no other before."""

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - num_prompt + 1
        for sequence in range(len(scores)):
            scores[sequence, EOS] = 1e9 if step_of.get(sequence) == step else -1e9
        return scores

    return [process]


@pytest.mark.parametrize("pad", [EOS, 0, 11])
def test_rows_end_before_the_first_eos(pad: int) -> None:  # case C01
    model, inputs = tiny("qwen3_moe"), prompts()
    processor = eos_bias({0: 1, 1: 4}, inputs["input_ids"].shape[1])
    with record(model) as recording:
        output = model.generate(**inputs, max_new_tokens=9, logits_processor=processor, pad_token_id=pad)
    assert [routes.end for routes in recording.routes] == [3, 7 + 3, 5 + 8]
    assert_recorded(model, recording, output, inputs)


def test_every_eos_id_ends_a_sequence() -> None:
    model, inputs = tiny("qwen3_moe"), prompts((4, 4))
    plain = model.generate(**inputs, max_new_tokens=6, eos_token_id=None)
    stop = int(plain[0, 4 + 2])
    first = plain[0, 4:].tolist().index(stop)
    with record(model) as recording:
        model.generate(**inputs, max_new_tokens=6, eos_token_id=[stop, 96])
    assert recording.routes[0].end == 4 + first


class StopAt:
    """Says that sequence 0 is done after some tokens, as a stop string would."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(
            [index == 0 and input_ids.shape[1] >= self.length for index in range(len(input_ids))]
        )


@pytest.mark.parametrize(("eos", "rows"), [(EOS, 4 + 2), (None, 4 + 7)])
def test_a_stopped_sequence_ends_where_padding_begins(eos: int | None, rows: int) -> None:
    model, inputs = tiny("qwen3_moe"), prompts((4, 4))
    processor = eos_bias({}, 4)
    with record(model) as recording:
        model.generate(
            **inputs,
            max_new_tokens=8,
            eos_token_id=eos,
            pad_token_id=5,
            logits_processor=processor,
            stopping_criteria=[StopAt(4 + 3)],
        )
    assert [routes.end for routes in recording.routes] == [rows, 4 + 7]


def test_one_token_and_prompt_only() -> None:  # case C01
    model, inputs = tiny("qwen3_moe"), prompts((5,))
    with record(model) as recording:
        model.generate(**inputs, max_new_tokens=1)
        model(inputs["input_ids"])
    assert [routes.end for routes in recording.routes] == [5, 5]


def test_padding_is_found_without_an_attention_mask() -> None:  # case A18
    model, inputs = tiny("qwen3_moe"), prompts()
    ids = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 0)
    with record(model) as recording:
        output = model.generate(ids, max_new_tokens=5)
    assert_recorded(model, recording, output, inputs)


def test_several_calls_in_one_recording() -> None:
    model = tiny("mixtral")
    with record(model) as recording:
        outputs = []
        for version, lengths in enumerate([(3, 5), (6,), (2, 2, 4)]):
            recording.version = version
            outputs.append((model.generate(**prompts(lengths), max_new_tokens=4), prompts(lengths)))
            assert len(recording.routes) == [2, 3, 6][version]
    routes = recording.routes
    assert [run[2] for one in routes for run in one.versions] == [0, 0, 1, 2, 2, 2]
    fed = [tokens for output, inputs in outputs for tokens in fed_of(output, inputs)]
    assert [one.tokens.tolist() for one in routes] == fed


def test_two_models_at_once() -> None:  # case G06
    first, second = tiny("qwen3_moe"), tiny("deepseek_v3")
    inputs = prompts()
    with record(first) as one, record(second) as two:
        first_output = first.generate(**inputs, max_new_tokens=4)
        second_output = second.generate(**inputs, max_new_tokens=6)
    assert_recorded(first, one, first_output, inputs)
    assert_recorded(second, two, second_output, inputs)


def test_two_recordings_of_one_model() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    outer = record(model, version=1)
    outer.__enter__()
    with record(model, version=2) as inner:
        output = model.generate(**inputs, max_new_tokens=4)
        outer.__exit__(None, None, None)  # not the innermost one
        more = model.generate(**inputs, max_new_tokens=5)
    assert_recorded(model, outer, output, inputs)
    assert len(inner.routes) == 6
    assert inner.routes[3].tokens.tolist() == fed_of(more, inputs)[0]
    assert_untouched(model)


def test_wanted_chooses_prompts() -> None:  # case C19, case J04, case J09
    model, inputs = tiny("qwen3_moe"), prompts()
    with record(model, wanted=[True, False, True]) as recording:
        output = model.generate(**inputs, max_new_tokens=4, do_sample=True, num_return_sequences=2)
        with pytest.raises(moetape.InvalidArgumentError, match=r"wanted: expected 2 flags.*, got 3"):
            model.generate(**prompts((3, 4)), max_new_tokens=4)
    fed = fed_of(output, inputs)
    kept = [None if routes is None else routes.tokens.tolist() for routes in recording.routes]
    assert kept == [fed[0], fed[1], None, None, fed[4], fed[5]]


@pytest.mark.parametrize("version", ["a", None, 1.0, True, [1]], ids=repr)
def test_a_version_that_is_no_integer_is_refused_when_it_is_set(version: Any) -> None:
    model = tiny("qwen3_moe")
    with pytest.raises(moetape.WrongTypeError, match="version: expected an integer"):
        record(model, version)
    recording = record(model, np.int64(3))
    with pytest.raises(moetape.WrongTypeError, match="version: expected an integer"):
        recording.version = version
    assert recording.version == 3


@pytest.mark.parametrize("num_flags", [0, 1, 2, 3, 8])
def test_wanted_of_another_length_is_refused(num_flags: int) -> None:  # case J09
    model, inputs = tiny("qwen3_moe"), prompts((3, 4, 5, 3))
    with record(model, wanted=[True] * num_flags) as recording:
        for way in ({}, {"do_sample": True, "num_return_sequences": 2}):
            with pytest.raises(moetape.InvalidArgumentError, match=f"expected 4 flags.*, got {num_flags}"):
                model.generate(**inputs, max_new_tokens=3, **way)
        with pytest.raises(moetape.InvalidArgumentError, match=f"expected 4 flags.*, got {num_flags}"):
            model(**inputs)
    assert recording.routes == []


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([2, 0, 5], moetape.InvalidArgumentError),
        ([1, -1], moetape.InvalidArgumentError),
        ([1.0, 0.0], moetape.WrongTypeError),
        (["a", ""], moetape.WrongTypeError),
        ("ab", moetape.WrongTypeError),
        ([None, True], moetape.WrongTypeError),
        ([[True], [False]], moetape.WrongTypeError),
        ([[True], []], moetape.WrongTypeError),
        (True, moetape.WrongTypeError),
        (torch.ones(2, dtype=torch.bfloat16), moetape.WrongTypeError),
    ],
    ids=str,
)
def test_wanted_that_are_no_flags_are_refused(flags: Any, error: type[Exception]) -> None:
    model = tiny("qwen3_moe")
    with pytest.raises(error, match="wanted: expected"):
        record(model, wanted=flags)
    recording = record(model, wanted=[1, 0])
    with pytest.raises(error, match="wanted: expected"):
        recording.wanted = flags
    assert recording.wanted.tolist() == [True, False]


@pytest.mark.parametrize("flags", [np.array([True, False]), torch.tensor([True, False])])
def test_wanted_may_be_an_array(flags: Any) -> None:
    model, inputs = tiny("qwen3_moe"), prompts((3, 4))
    with record(model, wanted=flags) as recording:
        model.generate(**inputs, max_new_tokens=3)
    assert [routes is None for routes in recording.routes] == [False, True]


def test_without_a_cache_each_forward_gives_the_rows_of_its_new_tokens() -> None:
    model, inputs = tiny("qwen3_moe"), prompts((3, 5))
    recording = record(model)
    before = copy.deepcopy(model)

    def train(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        recording.version += 1
        with torch.no_grad():
            for router in moetape.models.find_routers(model):
                router.module.weight.neg_()
        return scores

    with recording:
        output = model.generate(
            **inputs, max_new_tokens=4, eos_token_id=None, use_cache=False, logits_processor=[train]
        )
    for routes, tokens, prompt in zip(recording.routes, fed_of(output, inputs), (3, 5), strict=True):
        assert routes.tokens.tolist() == tokens
        assert routes.complete
        ends = [prompt, prompt + 1, prompt + 2, prompt + 3]
        assert routes.versions == [*zip([0, *ends], ends, range(4), strict=False)]
        assert_same_experts(routes.slice(0, prompt), alone(before, tokens[:prompt]))
        assert_same_experts(
            routes.slice(prompt + 1, prompt + 2), alone(before, tokens)[prompt + 1 : prompt + 2]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_records_the_same_without_a_cache(kind: str) -> None:
    model, inputs = tiny(kind), prompts()
    with record(model) as recording:
        output = model.generate(
            **inputs, max_new_tokens=5, use_cache=False, num_return_sequences=2, do_sample=True
        )
    assert_recorded(model, recording, output, inputs)


def test_a_cache_is_continued_by_a_second_turn() -> None:
    model, inputs = tiny("qwen3_moe"), prompts((6,))
    with record(model) as recording:
        first = model.generate(**inputs, max_new_tokens=5, eos_token_id=None, return_dict_in_generate=True)
        turn = torch.cat([first.sequences, torch.tensor([[20, 21]])], dim=1)
        second = model.generate(
            turn, past_key_values=first.past_key_values, max_new_tokens=4, eos_token_id=None
        )
    one, two = recording.routes
    assert one.end == 6 + 4
    assert two.tokens.tolist() == second[0, :-1].tolist()
    assert two.complete
    assert_same_experts(two, alone(model, second[0, :-1].tolist()))
    assert np.array_equal(two.ids[: one.end], one.ids)


def test_a_prefix_cache_is_shared_by_deep_copies() -> None:
    model = tiny("qwen3_moe")
    prefix = prompts((6,))["input_ids"]
    with record(model) as recording:
        with torch.no_grad():
            cache = model(prefix, use_cache=True).past_key_values
        outputs = [
            model.generate(
                torch.cat([prefix, torch.tensor([tail])], dim=1),
                past_key_values=copy.deepcopy(cache),
                max_new_tokens=3,
                eos_token_id=None,
            )
            for tail in ([7, 8], [9, 10, 11])
        ]
    shared, *turns = recording.routes
    assert shared.end == 6
    for routes, output in zip(turns, outputs, strict=True):
        assert routes.tokens.tolist() == output[0, :-1].tolist()
        assert_same_experts(routes, alone(model, output[0, :-1].tolist()))


def test_a_cache_filled_before_the_recording_has_a_start() -> None:
    model = tiny("qwen3_moe")
    ids = prompts((9,))["input_ids"]
    cache = model(ids[:, :6], use_cache=True).past_key_values
    with record(model) as recording:
        output = model.generate(ids, past_key_values=cache, max_new_tokens=4, eos_token_id=None)
    (routes,) = recording.routes
    assert (routes.start, routes.end) == (6, 12)
    assert routes.tokens.tolist() == output[0, 6:-1].tolist()
    assert np.array_equal(routes.ids, alone(model, output[0, :-1].tolist())[6:])


def test_embeddings_give_rows_without_tokens() -> None:
    model = tiny("qwen3_moe")
    ids = prompts((6,))["input_ids"]
    with record(model) as recording:
        output = model.generate(
            inputs_embeds=model.get_input_embeddings()(ids), max_new_tokens=4, eos_token_id=None
        )
    (routes,) = recording.routes
    assert routes.end == 9
    assert routes.tokens is None
    assert_same_experts(routes, alone(model, ids[0].tolist() + output[0, :-1].tolist()))


def test_the_store_grows_and_slots_are_used_again() -> None:  # case K08
    model = tiny("qwen3_moe")
    with record(model, num_slots=8) as recording:
        model.generate(**prompts((40, 20)), max_new_tokens=30, eos_token_id=None)
        grown = recording.memory_bytes
        for _ in range(6):
            output = model.generate(**prompts((20, 10)), max_new_tokens=5, eos_token_id=None)
        assert recording.memory_bytes <= grown
    assert [routes.end for routes in recording.routes] == [69, 49] + [24, 14] * 6
    assert all(routes.complete for routes in recording.routes)
    assert_same_experts(recording.routes[-2], alone(model, output[0, :-1].tolist()))


def test_records_the_ids_that_are_replayed() -> None:  # case H10
    model, inputs = tiny("qwen3_moe"), prompts((5, 5))

    def forcer(layer: int, scores: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (ids + 1 + layer) % 8

    handles = [models.interceptor(router).add_forcer(forcer) for router in models.find_routers(model)]
    with record(model) as recording:
        model.generate(**inputs, max_new_tokens=5, eos_token_id=None)
    forced = [alone(model, routes.tokens.tolist()) for routes in recording.routes]
    models.remove_all(handles)
    for routes, expected in zip(recording.routes, forced, strict=True):
        assert_same_experts(routes, expected)
        assert not np.array_equal(np.sort(routes.ids), np.sort(alone(model, routes.tokens.tolist())))


REFUSED = [
    ({"num_beams": 2}, "beam_search"),
    ({"num_beams": 2, "do_sample": True}, "beam_sample"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}, "group_beam_search"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
    ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
    ({"dola_layers": "low"}, "dola_generation"),
    ({"force_words_ids": [[5]], "num_beams": 2}, "constrained_beam_search"),
    ({"custom_generate": "some/repo"}, "custom_generate"),
    ({"cache_implementation": "paged"}, "continuous batching"),
    ({"guidance_scale": 1.5}, "guidance_scale"),
    ({"token_healing": True}, "token_healing"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED)
def test_refuses_by_name_before_anything_runs(options: dict[str, Any], name: str) -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    ran: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda *_: ran.append(1))
    with record(model) as recording:
        with pytest.raises(moetape.UnsupportedError, match=name):
            model.generate(**inputs, max_new_tokens=4, **options)
        assert ran == []
        assert recording.routes == []
        output = model.generate(**inputs, max_new_tokens=4)
    assert_recorded(model, recording, output, inputs)


def test_refuses_an_assistant_by_name() -> None:
    model = tiny("qwen3_moe")
    with record(model), pytest.raises(moetape.UnsupportedError, match="assisted_generation"):
        model.generate(**prompts((4,)), max_new_tokens=4, assistant_model=tiny("qwen3_moe", seed=1))


def test_refuses_generate_batch() -> None:
    model = tiny("qwen3_moe")
    with record(model), pytest.raises(moetape.UnsupportedError, match="continuous batching"):
        model.generate_batch([[3, 4]])


def test_refuses_a_logits_processor_that_runs_the_model() -> None:
    model, inputs = tiny("qwen3_moe"), prompts((4,))

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + model(input_ids).logits[:, -1]

    with record(model) as recording:
        with pytest.raises(moetape.UnsupportedError, match="second"):
            model.generate(**inputs, max_new_tokens=4, logits_processor=[process])
        assert recording.routes == []


def test_an_error_within_the_block_leaves_nothing_hooked() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    armed = False

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if armed:
            raise RuntimeError("sampler broke")
        return scores

    recording = record(model)

    def block() -> torch.Tensor:
        nonlocal armed
        with recording:
            output = model.generate(**inputs, max_new_tokens=3, logits_processor=[process])
            outputs.append(output)
            armed = True
            return model.generate(**inputs, max_new_tokens=3, logits_processor=[process])

    outputs: list[torch.Tensor] = []
    with pytest.raises(RuntimeError, match="sampler broke"):
        block()
    (output,) = outputs
    assert_untouched(model)
    assert_recorded(model, recording, output, inputs)


def test_a_failed_forward_does_not_spoil_the_next() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    norm = model.model.norm

    def broken(*_: Any) -> None:
        raise RuntimeError("kernel broke")

    with record(model) as recording:
        hook = norm.register_forward_pre_hook(broken)
        with pytest.raises(RuntimeError, match="kernel broke"):
            model.generate(**inputs, max_new_tokens=3)
        hook.remove()
        output = model.generate(**inputs, max_new_tokens=3)
    assert_recorded(model, recording, output, inputs)


def test_a_copy_made_while_recording_is_not_recorded() -> None:
    model, inputs = tiny("qwen3_moe"), prompts()
    plain = model.generate(**inputs, max_new_tokens=4)
    with record(model) as recording:
        copied = copy.deepcopy(model)
        assert torch.equal(copied.generate(**inputs, max_new_tokens=4), plain)
        assert recording.routes == []
