"""Replay in transformers models: alignment, the router's contract, and refusals."""

from __future__ import annotations

import copy
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import moetape as mt
from moetape.engines.transformers import record as recorded
from moetape.models import num_intercepted
from moetape.models.forward import ForwardInputs
from moetape.trainers._alignment import row_ids_of_mask
from moetape.trainers.transformers import Counts, attach
from replay_helpers import (
    deterministic,
    gradients,
    received,
    record,
    right_padded,
    same_gradients,
    tokens_of,
    wrong_routes,
)
from tiny_models import KINDS, tiny

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet() -> Any:
    yield
    if num_intercepted() != 0:
        gc.collect()  # a failure's traceback may hold a graph
    assert num_intercepted() == 0  # off is the original model


@pytest.fixture
def model() -> Any:
    return tiny("qwen3_moe")


@pytest.mark.parametrize("kind", KINDS)
def test_own_record_gives_the_same_bits_and_foreign_routes_do_not(kind: str) -> None:
    model = tiny(kind)
    batch = right_padded([[5, 9, 11, 40, 7], [3, 8, 60], [12, 13, 14, 15]])
    session = attach(model)
    with deterministic():
        plain = model(**batch)
        plain.logits.sum().backward()
        plain_gradients = gradients(model)
        routes = record(model, batch)
        with session.replay(routes) as replay, received(model) as ids:
            own = model(**batch)
        own.logits.sum().backward()
        own_gradients = gradients(model)
        assert torch.equal(own.logits, plain.logits)
        assert same_gradients(own_gradients, plain_gradients)
        assert replay.counts == Counts(replayed=9, missing=0, beyond=3, padding=3)
        for one, row in zip(routes, range(3), strict=True):
            for column, layer in enumerate(session.spec.layers):
                at = row * 5
                assert np.array_equal(ids[layer][at : at + one.end], one.ids[:, column])

        foreign = [wrong_routes(one) for one in routes]
        with session.replay(foreign), received(model) as ids:
            other = model(**batch)
        other.logits.sum().backward()
        assert np.array_equal(ids[session.spec.layers[-1]][:4], foreign[0].ids[:, -1])
        assert not torch.equal(other.logits[0], plain.logits[0])
        assert torch.isfinite(other.logits).all()
        other_gradients = gradients(model)
        assert not same_gradients(other_gradients, plain_gradients)
        for name in session._names.values():
            assert other_gradients[f"{name}.weight"].abs().sum() > 0, name


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_follow_the_attention_mask(model: Any, side: str) -> None:
    sequences = [[5, 9, 11, 40, 7], [3, 8, 60], [12]]
    alone = [record(model, {"input_ids": torch.tensor([one])})[0] for one in sequences]
    foreign = [wrong_routes(one) for one in alone]
    batch = right_padded(sequences)
    if side == "left":
        for at, one in enumerate(sequences):
            shift = 5 - len(one)
            for name in ("input_ids", "attention_mask"):
                batch[name][at] = batch[name][at].roll(shift)
    with attach(model).replay(foreign) as replay, received(model) as ids:
        model(**batch)
    assert replay.counts == Counts(replayed=6, missing=0, beyond=3, padding=6)
    for at, one in enumerate(foreign):
        first = at * 5 + (5 - len(sequences[at]) if side == "left" else 0)
        for column, layer in enumerate((0, 1, 2)):
            assert np.array_equal(ids[layer][first : first + one.end], one.ids[:, column])


def test_without_a_mask_all_tokens_are_real(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11], [3, 8, 60]])}
    routes = record(model, batch)
    with attach(model).replay(routes) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=4, beyond=2)


def test_a_given_mask_beats_the_forwards(model: Any) -> None:
    tokens = torch.tensor([[0, 5, 9, 11]])
    routes = record(model, {"input_ids": tokens[:, 1:]})
    with attach(model).replay(routes, attention_mask=[[0, 1, 1, 1]]) as replay:
        model(input_ids=tokens)
    assert replay.counts == Counts(replayed=2, beyond=1, padding=1)


def test_masks_may_be_of_any_numbers(model: Any) -> None:
    batch = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])
    routes = record(model, batch)
    mask = batch["attention_mask"].to(torch.bfloat16)
    with attach(model).replay(routes, attention_mask=mask) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=6, beyond=2, padding=2)


def test_positions_go_on_after_a_kv_cache(model: Any) -> None:
    tokens = torch.tensor([[5, 9, 11, 40, 7]])
    foreign = [wrong_routes(one) for one in record(model, {"input_ids": tokens})]
    session = attach(model)
    with session.replay(foreign):
        whole = model(input_ids=tokens).logits
    with session.replay([foreign[0].slice(0, 2)]):
        cache = model(input_ids=tokens[:, :2], use_cache=True).past_key_values
    with session.replay(foreign) as replay, received(model) as ids:
        rest = model(input_ids=tokens[:, 2:], past_key_values=cache).logits
    assert replay.counts == Counts(replayed=2, beyond=1)
    assert np.array_equal(ids[2][:2], foreign[0].ids[2:, 2])
    torch.testing.assert_close(rest, whole[:, 2:])


def test_arguments_by_position_and_embeddings_align_too(model: Any) -> None:
    batch = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])
    routes = [wrong_routes(one) for one in record(model, batch)]
    session = attach(model)
    with session.replay(routes):
        expected = model(**batch).logits
    with session.replay(routes):
        assert torch.equal(model(batch["input_ids"], batch["attention_mask"]).logits, expected)
    embeds = model.get_input_embeddings()(batch["input_ids"])
    with session.replay(routes):
        found = model(inputs_embeds=embeds, attention_mask=batch["attention_mask"]).logits
    assert torch.equal(found, expected)


@settings(deadline=None, max_examples=50)
@given(arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=6)), st.integers(0, 5))
def test_positions_count_the_real_tokens_before(mask: Any, past: int) -> None:
    batch, total = mask.shape
    past = min(past, total - 1)
    cache = SimpleNamespace(get_seq_length=lambda: past)
    call = ForwardInputs(torch.zeros(batch, total - past, dtype=torch.int64), cache=cache)
    found, num_tokens = row_ids_of_mask(call, torch.from_numpy(mask))
    for sequence, real in enumerate(mask.tolist()):
        assert num_tokens[sequence] == sum(real)
        positions = np.cumsum(real) - np.array(real)
        expected = np.where(real, mt.replay.row_ids(sequence, positions), 0)
        assert found[sequence].tolist() == expected.tolist()[past:]


def test_a_recording_under_replay_holds_the_replayed_ids(model: Any) -> None:
    batch = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])
    foreign = [wrong_routes(one) for one in record(model, batch)]
    with recorded(model) as recording, attach(model).replay(foreign):
        model(**batch)
    for replayed, one in zip(foreign, recording.routes, strict=True):
        assert np.array_equal(one.slice(0, replayed.end).ids, replayed.ids)


@pytest.mark.parametrize("flat", [False, True])
def test_row_ids_align_packed_sequences(model: Any, flat: bool) -> None:
    sequences = [[5, 9, 11, 40], [3, 8, 60]]
    foreign = [wrong_routes(record(model, {"input_ids": torch.tensor([one])})[0]) for one in sequences]
    # A trainer's shuffle: sequence 1 first, padding in the middle (0) and at the end (-1).
    row_ids = torch.tensor([[*mt.replay.row_ids(1, [0, 1, 2]), 0, *mt.replay.row_ids(0, [2, 3, 0]), -1]])
    tokens = torch.tensor([[3, 8, 60, 0, 11, 40, 5, 0]])
    given = row_ids.reshape(-1) if flat else row_ids
    with attach(model).replay(foreign, row_ids=given) as replay, received(model) as ids:
        model(input_ids=tokens)
    assert replay.counts == Counts(replayed=4, beyond=2, padding=2)
    for layer in (0, 1, 2):
        assert np.array_equal(ids[layer][:2], foreign[1].ids[:, layer])
        assert np.array_equal(ids[layer][4], foreign[0].ids[2, layer])
        assert np.array_equal(ids[layer][6], foreign[0].ids[0, layer])


def test_missing_rows_are_routed_live_and_counted(model: Any) -> None:  # case I16, I22
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40, 7]])}
    live = record(model, batch)[0]
    forced = wrong_routes(live)
    routes = mt.Routes.from_ids(model_spec(model), forced.ids, valid=np.array([1, 0, 1, 1], bool))
    session = attach(model)
    with session.replay([routes]) as replay, received(model) as ids:
        model(**batch)
    assert replay.counts == Counts(replayed=3, missing=1, beyond=1)
    # At the first layer nothing before it was forced: the live choice is the recorded one.
    assert np.array_equal(ids[0][1], live.ids[1, 0])
    assert np.array_equal(ids[0][[0, 2, 3]], forced.ids[[0, 2, 3], 0])
    with (
        pytest.raises(mt.MissingRowsError, match="sequence 0 position 1"),
        session.replay([routes], missing="error"),
    ):
        model(**batch)


def test_routes_that_start_late_leave_the_prompt_live(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40, 7]])}
    routes = record(model, batch)[0].slice(2, 4)
    with attach(model).replay([routes]) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=2, missing=2, beyond=1)


def test_an_empty_sequence_takes_empty_routes(model: Any) -> None:  # case I22
    batch = right_padded([[5, 9, 11]])
    batch = {name: torch.cat([value, torch.zeros_like(value)]) for name, value in batch.items()}
    routes = record(model, {"input_ids": torch.tensor([[5, 9, 11]])})
    with attach(model).replay([routes[0], routes[0].slice(0, 0)]) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=2, beyond=1, padding=3)


def test_padding_is_routed_as_the_model_does(model: Any) -> None:  # case D10
    batch = right_padded([[5, 9, 11, 40, 7], [3, 8]])
    with received(model) as plain:
        model(**batch)
    with attach(model).replay(record(model, batch)), received(model) as ids:
        model(**batch)
    for layer in (0, 1, 2):
        assert np.array_equal(ids[layer], plain[layer])
        assert all(len(set(row)) == len(row) for row in ids[layer].tolist())


@pytest.mark.parametrize(("rows", "fits"), [(5, False), (6, True), (7, True), (8, False)])
def test_rows_are_held_against_the_unpadded_length(model: Any, rows: int, fits: bool) -> None:  # case C10
    batch = right_padded([[5, 9, 11, 40, 7, 21, 22]], length=8)
    ids = np.tile(np.arange(2), (rows, 3, 1))
    session = attach(model)
    routes = [mt.Routes.from_ids(session.spec, ids)]
    if fits:
        with session.replay(routes) as replay:
            model(**batch)
        assert replay.counts == Counts(replayed=rows, beyond=7 - rows, padding=1)
        return
    with pytest.raises(mt.WrongShapeError, match="7 tokens"), session.replay(routes):
        model(**batch)


def test_short_routes_are_taken_where_allowed(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40, 7]])}
    routes = record(model, batch)[0].slice(0, 2)
    with attach(model).replay([routes], allow_short=True) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=2, beyond=3)


def test_logprob_of_a_token_hangs_on_the_row_before_it(model: Any) -> None:  # case C11
    tokens = torch.tensor([[5, 9, 11]])
    routes = record(model, {"input_ids": tokens})[0]
    session = attach(model)
    plain = model(input_ids=tokens).logits
    ids = np.array(routes.ids)
    ids[1] = wrong_routes(routes).ids[1]
    with session.replay([mt.Routes.from_ids(session.spec, ids)]):
        changed = model(input_ids=tokens).logits
    # Close, not equal: other rows of an expert's batch may change the order of its sums.
    torch.testing.assert_close(changed[0, 0], plain[0, 0])
    assert (changed[0, 1] - plain[0, 1]).abs().max() > 0.01


def test_a_second_model_is_untouched(model: Any) -> None:  # case G06
    other = tiny("qwen3_moe")
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    foreign = [wrong_routes(one) for one in record(model, batch)]
    plain = other(**batch).logits
    session = attach(model)
    attach(other)
    with session.replay(foreign):
        assert torch.equal(other(**batch).logits, plain)
        assert not torch.equal(model(**batch).logits, plain)
        copied = copy.deepcopy(model)
    assert torch.equal(copied(**batch).logits, plain)
    assert attach(copied) is not session


def test_attach_gives_one_session_a_model(model: Any) -> None:
    session = attach(model)
    assert attach(model) is session
    session.detach()
    assert attach(model) is not session
    with pytest.raises(mt.ClosedError, match="detached"), session.replay([]):
        pass


def test_layers_left_out_of_the_record_are_routed_live(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    whole = record(model, batch)
    excluded = {1: "not recorded"}
    with recorded(model, excluded=excluded) as recording:
        model(**batch)
    session = attach(model, excluded=excluded)
    foreign = wrong_routes(recording.routes[0])
    with session.replay([foreign]), received(model) as ids:
        model(**batch)
    for column, layer in enumerate((0, 2)):
        assert np.array_equal(ids[layer], foreign.ids[:, column])
    assert attach(model, excluded=excluded) is session
    with pytest.raises(mt.InvalidArgumentError, match="excluded"):
        attach(model, excluded={2: "another"})
    with pytest.raises(mt.SpecMismatchError), session.replay(whole):
        model(**batch)


def test_a_session_does_not_keep_its_model_alive() -> None:  # case G05
    session = attach(tiny("qwen3_moe"))
    gc.collect()
    with pytest.raises(mt.ClosedError, match="outlived"), session.replay([]):
        pass


def test_off_is_the_original_model(model: Any) -> None:
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    session = attach(model)
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    with session.replay(record(model, batch)):
        loss = model(**batch).logits.sum()
    loss.backward()
    after = {name: dict(module.__dict__) for name, module in model.named_modules()}
    assert before.keys() == after.keys()
    for name, state in before.items():
        assert state.keys() == after[name].keys()
        assert all(after[name][key] is value for key, value in state.items() if callable(value))
        assert not after[name]["_forward_hooks"]
        assert not after[name]["_forward_pre_hooks"]


# Refusals: nothing of the model runs, and the next block works.


def refused(
    model: Any, batch: dict[str, Any], error: type[mt.Error], match: str | None, *args: Any, **options: Any
) -> None:
    ran: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda *_: ran.append(1))
    with pytest.raises(error, match=match), attach(model).replay(*args, **options):
        model(**batch)
    hook.remove()
    assert not ran
    plain = model(**batch).logits
    with attach(model).replay(record(model, batch)):
        assert torch.equal(model(**batch).logits, plain)


def test_bad_routes_are_refused_before_anything_runs(model: Any) -> None:  # case C10
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40], [3, 8, 60, 61]])}
    routes = record(model, batch)
    deeper = mt.RouteSpec(layers=[0, 1], top_k=2, num_experts=8, num_layers=3)
    other = mt.Routes.from_ids(deeper, np.tile(np.arange(2), (3, 2, 1)))
    longer = mt.Routes.from_ids(model_spec(model), np.tile(np.arange(2), (5, 3, 1)))
    refused(model, batch, mt.SpecMismatchError, r"routes\[1\]", [routes[0], other])
    refused(model, batch, mt.WrongShapeError, "one per sequence of the batch", routes[:1])
    refused(model, batch, mt.WrongShapeError, r"routes\[1\].*longer", [routes[0], longer])
    refused(model, batch, mt.WrongTypeError, r"routes\[0\]", [routes[0].ids, routes[1].ids])
    refused(model, batch, mt.WrongTypeError, "expected a sequence", routes[0])
    refused(model, batch, mt.ConflictError, None, routes[::-1])


def test_bad_alignments_are_refused_before_anything_runs(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    ids = mt.replay.row_ids(0, np.arange(4)[None])
    refused(model, batch, mt.InvalidArgumentError, "both", routes, attention_mask=[[1] * 4], row_ids=ids)
    refused(model, batch, mt.WrongTypeError, "int64", routes, row_ids=ids.astype(np.int32))
    refused(model, batch, mt.WrongTypeError, "int64", routes, row_ids=torch.ones(1, 4, dtype=torch.bfloat16))
    refused(model, batch, mt.WrongShapeError, r"\[1, 4\] or \[4\]", routes, row_ids=ids[:, :3])
    refused(model, batch, mt.WrongShapeError, r"\[1, 4\] or \[4\]", routes, row_ids=ids.T)
    refused(model, batch, mt.InvalidArgumentError, None, routes, row_ids=np.array([ids[0, 0]] * 4))
    refused(model, batch, mt.OutOfRangeError, None, routes, row_ids=ids + (1 << 32))
    refused(model, batch, mt.WrongShapeError, r"\[1, 4\]", routes, attention_mask=[[1] * 3])
    refused(model, batch, mt.WrongShapeError, "batch, length", routes, attention_mask=torch.ones(1, 1, 4, 4))
    refused(model, batch, mt.WrongTypeError, "dict", routes, attention_mask={})
    refused(model, batch, mt.InvalidArgumentError, "missing", routes, missing="zero")
    with (
        pytest.raises(mt.UnsupportedError, match="expected a Cache, got tuple"),
        attach(model).replay(routes),
    ):
        model(**batch, past_key_values=((),))


def test_row_ids_behind_the_routes_are_refused_as_longer_sequences_are(model: Any) -> None:  # case I22
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40, 7, 0]])}
    routes = [record(model, {"input_ids": batch["input_ids"][:, :3]})[0]]  # ends at 2
    ids = np.array([[*mt.replay.row_ids(0, range(5)), -1]])
    for positions in (ids, ids + 1000 * (ids > 0)):
        refused(model, batch, mt.WrongShapeError, "up to 2 of sequence 0", routes, row_ids=positions)
    refused(
        model,
        batch,
        mt.MissingRowsError,
        "got 3 without; the first is sequence 0 position 2",
        routes,
        row_ids=ids,
        allow_short=True,
        missing="error",
    )
    with attach(model).replay(routes, row_ids=ids, allow_short=True) as replay:
        model(**batch)
    assert replay.counts == Counts(replayed=2, beyond=3, padding=1)
    with attach(model).replay(routes, row_ids=ids[:, :3], missing="error") as replay:
        model(input_ids=batch["input_ids"][:, :3])
    assert replay.counts == Counts(replayed=2, beyond=1)


def test_routes_too_short_for_their_sequence_miss_rows(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40, 7]])}
    routes = [record(model, batch)[0].slice(0, 2)]
    options: dict[str, Any] = {"allow_short": True, "missing": "error"}
    refused(model, batch, mt.MissingRowsError, "sequence 0 position 2", routes, **options)
    refused(model, batch, mt.WrongTypeError, "allow_short: expected True or False", routes, allow_short="x")


def test_routes_that_may_repeat_an_expert_are_refused(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    spec = model_spec(model)
    repeating = mt.RouteSpec(
        spec.layers, spec.top_k, spec.num_experts, num_layers=spec.num_layers, distinct=False
    )
    zeros = mt.Routes.from_ids(repeating, np.zeros((3, len(spec.layers), spec.top_k), np.int64))
    refused(model, batch, mt.SpecMismatchError, "distinct ids", [zeros])


def test_a_lost_block_locks_nothing(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    plain = model(**batch).logits
    session = attach(model)
    for run_in_it in (False, True):
        lost = session.replay(routes)
        lost.__enter__()
        if run_in_it:
            model(**batch).logits.sum().backward()
        del lost
        assert num_intercepted() == 0
        assert torch.equal(model(**batch).logits, plain)
    with session.replay(routes) as replay:
        assert torch.equal(model(**batch).logits, plain)
    assert replay.counts.replayed == 3


def test_a_block_without_a_forward_is_an_error(model: Any) -> None:  # case H10
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    session = attach(model)
    with pytest.raises(mt.NotCapturedError, match="got none"), session.replay(routes):
        pass
    with pytest.raises(mt.InvalidArgumentError, match="outside"), session.replay(routes):
        model.model(**batch)
    with session.replay(routes):
        model(**batch)
        with pytest.raises(mt.AlreadyCapturedError, match="second"):
            model(**batch)
    with pytest.raises(ZeroDivisionError), session.replay(routes):
        raise ZeroDivisionError


def test_a_router_that_does_not_fire_is_named(model: Any) -> None:  # case H10
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    model.model.layers[1].mlp.forward = lambda hidden: hidden
    with pytest.raises(mt.NotCapturedError, match=r"layers\.1\.mlp\.gate"), attach(model).replay(routes):
        model(**batch)


def test_a_router_that_fires_twice_is_named(model: Any) -> None:  # case H10
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    block = model.model.layers[1].mlp
    once = block.forward
    block.forward = lambda hidden: once(hidden) + once(hidden)
    with pytest.raises(mt.AlreadyCapturedError, match=r"layers\.1\.mlp\.gate"), attach(model).replay(routes):
        model(**batch)


def test_a_router_that_sees_part_of_the_rows_is_named(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    block = model.model.layers[2].mlp
    whole = block.forward
    block.forward = lambda hidden: torch.cat([whole(hidden[:, :2]), whole(hidden[:, 2:])], 1)
    with (
        pytest.raises(mt.WrongShapeError, match=r"layers\.2\.mlp\.gate.*\[4, 2\]"),
        attach(model).replay(routes),
    ):
        model(**batch)


def test_a_failing_forward_leaves_the_model_as_it_was(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    plain = model(**batch).logits
    routes = record(model, batch)
    session = attach(model)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    hook = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError), session.replay([wrong_routes(one) for one in routes]):
        model(**batch)
    hook.remove()
    if num_intercepted() != 0:
        gc.collect()  # a failure's traceback may hold a graph
    assert num_intercepted() == 0
    assert torch.equal(model(**batch).logits, plain)
    with session.replay(routes):
        assert torch.equal(model(**batch).logits, plain)


def test_a_block_that_cannot_open_leaves_nothing_hooked(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    session = attach(model)

    def fail(self: Any, *_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(session._interceptors[-1], "add_forcer", fail)
        with pytest.raises(ZeroDivisionError), session.replay(routes):
            pass
    assert num_intercepted() == 0
    with session.replay(routes) as replay:
        model(**batch)
    assert replay.counts.replayed == 3


class Wrapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: torch.Tensor) -> Any:
        return self.inner(hidden_states)


@pytest.mark.parametrize("replacing", [copy.deepcopy, Wrapped])
def test_a_router_replaced_since_is_found_again(model: Any, replacing: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    (routes,) = record(model, batch)
    session = attach(model)
    mlp = model.model.layers[1].mlp
    mlp.gate = replacing(mlp.gate)
    foreign = wrong_routes(routes)
    with session.replay([foreign]), received(model) as ids:
        model(**batch)
    for column, layer in enumerate(foreign.spec.layers):
        assert np.array_equal(ids[layer][:3], foreign.ids[:, column])


def test_a_router_replaced_by_what_is_none_is_an_error_and_named(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    session = attach(model)
    mlp = model.model.layers[1].mlp
    gate, mlp.gate = mlp.gate, torch.nn.Linear(32, 8)
    with pytest.raises(mt.UnsupportedError, match=r"layers\.1\.mlp"), session.replay(routes):
        pass
    mlp.gate = copy.deepcopy(gate)
    mlp.gate.top_k = 1
    with pytest.raises(mt.UnsupportedError, match="unequal top-k"), session.replay(routes):
        pass
    mlp.gate = gate
    with session.replay(routes):
        loss = model(**batch).logits.sum()
    mlp.gate = copy.deepcopy(gate)
    with (
        pytest.raises(mt.ConflictError, match=r"1 micro-batches.*layers\.1\.mlp\.gate"),
        session.replay(routes),
    ):
        pass
    loss.backward()
    with session.replay(routes) as replay:
        model(**batch)
    assert replay.counts.replayed == 3


def test_blocks_do_not_nest_and_are_used_once(model: Any) -> None:
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    session = attach(model)
    block = session.replay(routes)
    with block:
        with pytest.raises(mt.InvalidArgumentError, match="one open block"), session.replay(routes):
            pass
        with pytest.raises(mt.InvalidArgumentError, match="open block"):
            session.detach()
        model(**batch)
    with pytest.raises(mt.InvalidArgumentError, match="used one"), block:
        pass


def test_dense_models_are_refused_by_name() -> None:
    with pytest.raises(mt.InvalidArgumentError, match="dense"):
        attach(torch.nn.Sequential(torch.nn.Linear(4, 4)))


def test_tokens_ride_along(model: Any) -> None:
    batch = right_padded([[5, 9, 11, 40], [3, 8, 60]])
    routes = record(model, batch)
    assert tokens_of(routes[1]) == [3, 8]
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][1, 1] = 9
    with pytest.raises(mt.ConflictError), attach(model).replay(routes):
        model(**changed)


def model_spec(model: Any) -> mt.RouteSpec:
    return attach(model).spec
