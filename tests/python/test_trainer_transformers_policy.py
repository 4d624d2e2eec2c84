"""The policy by the value of each field, and what the trainer's own forwards record (R2)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.engines.transformers import record as recorded
from moetape.models import num_intercepted
from moetape.trainers.transformers import Counts, ReplayPolicy, attach
from replay_helpers import (
    deterministic,
    gradients,
    received,
    record,
    right_padded,
    same_gradients,
    wrong_routes,
)
from tiny_models import tiny

BATCH = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    gc.collect()
    assert num_intercepted() == 0


@pytest.fixture
def model() -> Any:
    return tiny("qwen3_moe").train()


def holed(model: Any) -> mt.Routes:
    """Foreign routes of BATCH's first sequence, whose second row is missing."""
    foreign = wrong_routes(record(model, BATCH)[0])
    return mt.Routes.from_ids(foreign.spec, foreign.ids, valid=np.array([1, 0, 1, 1], bool))


def test_the_policy_names_the_passes_that_replay(model: Any) -> None:
    foreign = [wrong_routes(one) for one in record(model, BATCH)]
    plain = model(**BATCH).logits
    session = attach(model)
    with session.replay(foreign, pass_="reference") as replay:
        assert torch.equal(model(**BATCH).logits, plain)
    assert (replay.counts, replay.is_live) == (Counts(), True)
    for pass_ in ("train", "logprob"):
        with session.replay(foreign, pass_=pass_):
            assert not torch.equal(model(**BATCH).logits, plain)
    session.policy = ReplayPolicy(passes=("reference",))
    with session.replay(foreign, pass_="reference"):
        assert not torch.equal(model(**BATCH).logits, plain)
    with pytest.raises(mt.InvalidArgumentError, match="pass_"):
        session.replay(foreign, pass_="rollout")


def test_missing_rows_and_padding_are_filled(model: Any) -> None:
    routes = [holed(model), wrong_routes(record(model, BATCH)[1])]
    session = attach(model, policy=ReplayPolicy(missing="fill", padding="fill"))
    with session.replay(routes) as replay, received(model) as ids:
        model(**BATCH)
    assert replay.counts == Counts(replayed=5, missing=1, beyond=2, padding=2)
    assert all(len(set(row)) == 2 for row in ids[0].tolist())
    filled = ids[0][[1, 4, 7, 8, 9]]
    assert np.array_equal(np.sort(filled), np.sort(ids[2][[1, 4, 7, 8, 9]]))  # the same at every layer


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (ReplayPolicy(missing="error"), "sequence 0 position 1"),
        (ReplayPolicy(max_missing=0.1), "all but 10% of the 5 tokens of sequence 0, got 1"),
        (ReplayPolicy(max_missing_in_batch=0.1), "at most 10% of the batch's 8 tokens .*got 1"),
    ],
)
def test_too_many_missing_rows_are_refused(model: Any, policy: ReplayPolicy, message: str) -> None:
    routes = [holed(model), record(model, BATCH)[1]]
    session = attach(model, policy=policy)
    with pytest.raises(mt.MissingRowsError, match=message), session.replay(routes):
        model(**BATCH)
    session.policy = ReplayPolicy(max_missing=0.2, max_missing_in_batch=0.125)
    with session.replay(routes) as replay:
        model(**BATCH)
    assert replay.counts.missing == 1


def test_rows_of_older_versions_are_missing(model: Any) -> None:
    session = attach(model, policy=ReplayPolicy(min_version=4))
    for version, replayed in ((3, 0), (4, 6)):
        with torch.no_grad(), session.record(version=version) as recording:
            model(**BATCH)
        with session.replay(recording.routes) as replay:
            model(**BATCH)
        assert replay.counts.replayed == (8 if replayed else 0)


def test_what_cannot_be_honoured_is_refused_by_name(model: Any) -> None:
    for policy in (ReplayPolicy(aux_loss="replayed"), ReplayPolicy(aux_loss="none")):
        with pytest.raises(mt.UnsupportedError, match="policy: expected aux_loss='live'"):
            attach(model, policy=policy)
    with pytest.raises(mt.WrongTypeError, match="policy"):
        attach(model, policy={})
    noisy = tiny("mixtral", router_jitter_noise=0.1).train()
    routes = record(noisy.eval(), BATCH)
    noisy.train()
    session = attach(noisy)
    with pytest.raises(mt.UnsupportedError, match=r"jitter_noise=0\.1"), session.replay(routes):
        noisy(**BATCH)
    session.policy = ReplayPolicy(allow={"jitter"})
    with session.replay(routes) as replay:
        noisy(**BATCH)
    assert replay.counts.replayed == 6


def bad_data(routes: mt.Routes) -> dict[str, mt.Routes]:
    """What may be wrong with the routes of BATCH's first sequence, by what the error says."""
    spec = routes.spec
    other = mt.RouteSpec(spec.layers, spec.top_k, 2 * spec.num_experts, num_layers=spec.num_layers)
    tokens = np.array([5, 9, 60, 40], np.int32)
    return {
        r"routes\[0\].*expected those of": mt.Routes.from_ids(other, routes.ids),
        r"routes\[0\].*an end at 4 or 5": routes.slice(0, 2),
        "11": mt.Routes.from_ids(spec, routes.ids, tokens=tokens),
        "position 1": mt.Routes.from_ids(spec, routes.ids, valid=np.array([1, 0, 1, 1], bool)),
    }


@pytest.mark.parametrize("fault", range(4))
def test_bad_data_of_a_sequence_raises_drops_it_or_ends_replay(model: Any, fault: int) -> None:
    good = [wrong_routes(one) for one in record(model, BATCH)]
    message, bad = list(bad_data(good[0]).items())[fault]
    routes = [bad, good[1]]
    plain = model(**BATCH).logits
    session = attach(model, policy=ReplayPolicy(missing="error"))
    with pytest.raises(mt.Error, match=message), session.replay(routes):
        model(**BATCH)

    session.policy = ReplayPolicy(missing="error", on_bad_data="drop")
    with session.replay(routes) as replay, received(model) as ids:
        model(**BATCH)
    assert (replay.dropped, replay.is_live) == ({0}, False)
    assert replay.counts == Counts(replayed=2, beyond=1, padding=2, dropped=5)
    assert np.array_equal(ids[2][5:7], good[1].ids[:, 2])
    session.policy = ReplayPolicy(missing="error", on_bad_data="drop", max_missing_in_batch=0.5)
    with (
        pytest.raises(mt.MissingRowsError, match=r"50% of the batch's 8 tokens .* got 5"),
        session.replay(routes),
    ):
        model(**BATCH)

    session.policy = ReplayPolicy(missing="error", on_bad_data="live")
    with session.replay(routes) as replay:
        assert torch.equal(model(**BATCH).logits, plain)
    assert (replay.dropped, replay.is_live, replay.counts) == (frozenset(), True, Counts())
    with session.replay(good) as replay:
        assert not torch.equal(model(**BATCH).logits, plain)
    assert not replay.is_live


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_the_trainers_own_record_replays_to_the_same_bits(model: Any, reentrant: bool | None) -> None:
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    session = attach(model)
    with deterministic():
        with session.record(version=7) as recording, received(model) as ids:
            plain = model(**BATCH).logits
        plain.square().mean().backward()
        expected = gradients(model)
        first, second = recording.routes
        assert (recording.source, first.tokens.tolist(), len(second)) == ("train", [5, 9, 11, 40, 7], 3)
        assert first.versions == [(0, 5, 7)]
        assert all(np.array_equal(first.ids[:, layer], ids[layer][:5]) for layer in (0, 1, 2))
        with session.replay(recording.routes) as replay:
            again = model(**BATCH).logits
        again.square().mean().backward()
        assert replay.counts == Counts(replayed=8, padding=2)
        assert torch.equal(again, plain)
        assert same_gradients(gradients(model), expected)


def test_a_record_follows_row_ids_and_keeps_nothing_of_a_failed_forward(model: Any) -> None:
    tokens = torch.tensor([[3, 8, 60, 0, 11, 40]])
    row_ids = np.array([[*mt.replay.row_ids(1, [0, 1, 2]), 0, *mt.replay.row_ids(0, [2, 3])]])
    session = attach(model)
    with torch.no_grad(), session.record(row_ids=row_ids) as recording, received(model) as ids:
        model(input_ids=tokens)
    first, second = recording.routes
    assert (first.start, first.end, second.start, second.end) == (2, 4, 0, 3)
    assert first.tokens.tolist() == [11, 40]
    assert np.array_equal(second.ids[:, 1], ids[1][:3])
    with session.record() as recording, pytest.raises(mt.WrongShapeError):
        model(input_ids=tokens, attention_mask=torch.ones(1, 4))
    assert recording.routes == []
    with pytest.raises(mt.InvalidArgumentError, match="used one"), recording:
        pass


def test_a_record_goes_on_behind_a_kv_cache(model: Any) -> None:
    tokens = torch.tensor([[5, 9, 11, 40, 7]])
    session = attach(model)
    with torch.no_grad(), session.record() as whole:
        model(input_ids=tokens)
    with torch.no_grad(), session.record() as recording:
        cache = model(input_ids=tokens[:, :2], use_cache=True).past_key_values
        model(input_ids=tokens[:, 2:], past_key_values=cache)
    first, second = recording.routes
    assert (first.start, first.end, second.start, second.end) == (0, 2, 2, 5)
    assert first.extend(second) == whole.routes[0]


def test_a_lost_record_ends_by_itself(model: Any) -> None:
    lost = attach(model).record()
    lost.__enter__()
    model(**BATCH)
    assert num_intercepted() == 3
    del lost
    assert num_intercepted() == 0
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_what_fires_twice_or_not_at_all_is_no_record(model: Any) -> None:
    block = model.model.layers[1].mlp
    once = block.forward
    session = attach(model)
    for forward, error in (
        (lambda hidden: once(hidden) + once(hidden), mt.AlreadyCapturedError),
        (lambda hidden: hidden, mt.NotCapturedError),
        (lambda hidden: torch.cat([once(hidden[:1]), once(hidden[1:])]), mt.WrongShapeError),
    ):
        block.forward = forward
        with session.record() as recording:
            with pytest.raises(error, match="layer"):
                model(**BATCH)
            block.forward = once
            model(**BATCH)
        assert [len(one) for one in recording.routes] == [5, 3]
    twice = np.array([[*mt.replay.row_ids(0, [0, 1, 2, 1, 3]), 0]])
    with pytest.raises(mt.InvalidArgumentError, match="twice"), session.record(row_ids=twice):
        model(input_ids=torch.tensor([[3, 8, 60, 11, 40, 0]]))
    with pytest.raises(mt.InvalidArgumentError, match="got both"):
        session.record(attention_mask=[[1]], row_ids=twice)


def test_records_of_both_sides_lie_in_one_tape_under_their_own_keys(
    model: Any, tmp_path: Path
) -> None:  # case I08
    tokens = {"input_ids": torch.tensor([[5, 9, 11, 40, 7]])}
    server = tiny("qwen3_moe", seed=1)
    with torch.no_grad(), recorded(server, version=7) as rollout:
        server(**tokens)
    with torch.no_grad(), attach(model).record(version=7) as recording:
        model(**tokens)
    both = {"rollout/a": rollout.routes[0], f"{recording.source}/a": recording.routes[0]}
    mt.save(tmp_path / "both.tape", both.values(), sequence_ids=list(both))
    tape = mt.open(tmp_path / "both.tape")
    assert [tape.entry(at).id for at in range(2)] == ["rollout/a", "train/a"]
    assert [tape[0], tape[1]] == list(both.values())
    assert not np.array_equal(tape[0].ids, tape[1].ids)
