"""What stands before a router's top-k: taps, forcers, and nothing once they are gone."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import moetape
import toy_moe
from moetape import models
from tiny_models import KINDS, tiny
from toy_moe import Router, toy


def hooks(model: Any) -> list[models.Interceptor]:
    return [models.interceptor(router) for router in models.find_routers(model)]


def tap_all(model: Any) -> tuple[dict[int, list[torch.Tensor]], list[models.Handle]]:
    seen: dict[int, list[torch.Tensor]] = {}
    handles = [
        hook.add_tap(lambda layer, ids: seen.setdefault(layer, []).append(ids.clone()))
        for hook in hooks(model)
    ]
    return seen, handles


def experts_inputs(model: Any) -> tuple[dict[int, list[torch.Tensor]], list[Any]]:
    """What each experts module receives, by a hook that knows nothing of routers."""
    received: dict[int, list[torch.Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            layer = int(name.split("layers.")[1].split(".")[0])

            def hook(module: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                values = [*args, *kwargs.values()]
                (ids,) = (v for v in values if isinstance(v, torch.Tensor) and v.dtype == torch.int64)
                received.setdefault(layer, []).append(ids.clone())

            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    return received, handles


def input_ids(batch: int = 2, length: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_taps_see_what_experts_receive(kind: str) -> None:
    model = tiny(kind)
    plain = model(input_ids()).logits
    received, _ = experts_inputs(model)
    seen, handles = tap_all(model)
    logits = model(input_ids()).logits
    assert torch.equal(logits, plain)
    assert seen.keys() == received.keys()
    for layer, (ids,) in seen.items():
        assert ids.shape == (14, 2)
        assert torch.equal(ids, received[layer][0])
    models.remove_all(handles)


@pytest.mark.parametrize("kind", KINDS)
def test_own_ids_give_the_same_bits_and_foreign_ones_do_not(kind: str) -> None:  # case H10, case I01
    model = tiny(kind).train()
    routers = models.find_routers(model)
    seen, handles = tap_all(model)

    def run(forcer: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        forced = [] if forcer is None else [hook.add_forcer(forcer) for hook in hooks(model)]
        model.zero_grad()
        logits = model(input_ids()).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), input_ids(seed=1).flatten()).backward()
        models.remove_all(forced)
        grads = [weight.grad.clone() for router in routers for weight in router.module.parameters()]
        return logits.detach(), grads

    torch.use_deterministic_algorithms(True)
    try:
        live, live_grads = run(None)
        own = {layer: ids[0] for layer, ids in seen.items()}
        again, again_grads = run(lambda layer, scores, values, ids: own[layer])
        other, other_grads = run(lambda layer, scores, values, ids: (own[layer] + 3) % 8)
    finally:
        torch.use_deterministic_algorithms(False)
    models.remove_all(handles)

    assert torch.equal(live, again)
    assert all(torch.equal(a, b) for a, b in zip(live_grads, again_grads, strict=True))
    assert not torch.equal(live, other)
    assert any(grad.abs().sum() > 0 for grad in other_grads)


def test_taps_see_forced_ids() -> None:
    model = toy(Router(), None, Router())
    forced = torch.tensor([[1, 5], [7, 0], [2, 3]])
    seen, handles = tap_all(model)
    handles += [hook.add_forcer(lambda layer, *_: forced if layer == 2 else None) for hook in hooks(model)]
    model(torch.randn(3, 6))
    assert not torch.equal(seen[0][0], forced)
    assert torch.equal(seen[2][0], forced)
    assert torch.equal(model.layers[2].mlp.experts.received[0], forced)
    models.remove_all(handles)


def test_forcer_sees_scores_and_live_choice() -> None:
    model = toy(Router())
    hidden = torch.randn(4, 6)
    calls: list[Any] = []
    handle = hooks(model)[0].add_forcer(lambda *args: calls.append(args))
    weights, ids = model.layers[0].mlp.gate(hidden)
    handle.remove()
    ((layer, scores, values, live),) = calls
    assert layer == 0
    assert scores.shape == (4, 8)
    assert torch.equal(live, ids)
    assert torch.equal(values, weights)
    assert torch.equal(scores.gather(1, live), values)


def test_two_forcers_that_choose_are_an_error() -> None:
    model = toy(Router())
    ids = torch.tensor([[0, 1]])
    hook = hooks(model)[0]
    handles = [hook.add_forcer(lambda *_: ids), hook.add_forcer(lambda *_: ids)]
    with pytest.raises(moetape.ConflictError, match=r"layers\.0\.mlp\.gate.*one forcer"):
        model(torch.randn(1, 6))
    handles[0].remove()
    model(torch.randn(1, 6))
    handles[1].remove()


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([[0, 1]]), torch.tensor([[0], [1]]), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)],
)
def test_forced_ids_of_another_shape_or_type_are_refused(ids: torch.Tensor) -> None:
    model = toy(Router())
    handle = hooks(model)[0].add_forcer(lambda *_: ids)
    with pytest.raises(
        moetape.InvalidArgumentError, match=r"layers\.0\.mlp\.gate: expected forced ids int64"
    ):
        model(torch.randn(2, 6))
    handle.remove()


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_experts_of_a_masked_group_get_the_weight_of_their_score(kind: str) -> None:  # case I01
    model = tiny(kind)
    (gate, *_) = [router.module for router in models.find_routers(model)]
    hidden = torch.randn(6, 32)
    received: list[torch.Tensor] = []

    def other_groups(layer: int, scores: torch.Tensor, values: Any, ids: torch.Tensor) -> torch.Tensor:
        masked = scores <= 0
        assert masked.sum(1).tolist() == [4] * 6
        received.append(masked.nonzero()[:, 1].reshape(6, 4)[:, :2])
        return received[-1]

    handle = hooks(model)[0].add_forcer(other_groups)
    logits, weights, ids = gate(hidden)
    weights.log().sum().backward()
    handle.remove()
    assert torch.equal(ids, received[0])
    scores = torch.softmax(logits, dim=-1) if kind == "deepseek_v2" else logits.sigmoid()
    expected = scores.gather(1, ids)
    if kind == "deepseek_v3":
        expected = expected / (expected.sum(1, keepdim=True) + 1e-20)
    torch.testing.assert_close(weights, expected * gate.routed_scaling_factor)
    assert (gate.weight.grad[ids.unique()] != 0).any(1).all()


@pytest.mark.parametrize("value", [0.0, -torch.inf])
def test_experts_whose_score_is_lost_are_refused(value: float) -> None:  # case I01
    model = toy(toy_moe.MaskingRouter())
    model.layers[0].mlp.gate.value = value
    forced = torch.tensor([[0, 1], [2, 6]])
    handle = hooks(model)[0].add_forcer(lambda *_: forced)
    with pytest.raises(
        moetape.UnsupportedError, match=r"layers\.0\.mlp\.gate.*expert 6 in row 1 with (0\.0|-inf)"
    ):
        model(torch.randn(2, 6))
    forced[1, 1] = 3
    model(torch.randn(2, 6))
    handle.remove()


def test_two_expert_topks_in_one_forward_are_refused() -> None:  # case G15
    model = toy(toy_moe.TwiceRouter())
    _, handles = tap_all(model)
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.0\.mlp\.gate.*got a second"):
        model(torch.randn(2, 6))
    models.remove_all(handles)
    model(torch.randn(2, 6))


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_group_topks_are_not_taken_for_the_experts(kind: str) -> None:  # case G15
    model = tiny(kind)
    received, _ = experts_inputs(model)
    seen, handles = tap_all(model)
    model(input_ids(4, 16))
    models.remove_all(handles)
    for layer, calls in seen.items():
        assert len(calls) == 1
        assert torch.equal(calls[0], received[layer][0])
    assert max(int(calls[0].max()) for calls in seen.values()) > 3  # beyond the four groups


def test_router_without_its_topk_is_an_error() -> None:  # case H03, case H10
    model = toy(Router(), toy_moe.SometimesRouter())
    _, handles = tap_all(model)
    model.layers[1].mlp.gate.skip = True
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.1\.mlp\.gate.*got none"):
        model(torch.randn(2, 6))
    models.remove_all(handles)


def test_tap_errors_are_not_swallowed() -> None:  # case H03
    model = toy(Router())

    def broken(layer: int, ids: torch.Tensor) -> None:
        raise RuntimeError("tap broke")

    handle = hooks(model)[0].add_tap(broken)
    with pytest.raises(RuntimeError, match="tap broke"):
        model(torch.randn(2, 6))
    handle.remove()


def test_nothing_is_left_when_off() -> None:  # case K03
    model = toy(Router(), Router())
    before = [dict(module.__dict__) for module in model.modules()]
    assert models.num_intercepted() == 0
    seen, handles = tap_all(model)
    assert models.num_intercepted() == 2
    handles[0].remove()
    handles[0].remove()
    assert models.num_intercepted() == 1
    handles[1].remove()
    assert models.num_intercepted() == 0
    assert [dict(module.__dict__) for module in model.modules()] == before
    model(torch.randn(2, 6))
    assert seen == {}


def test_interceptor_is_one_per_module() -> None:
    router = models.find_routers(toy(Router()))[0]
    first = models.interceptor(router)
    seen: list[str] = []
    handles = [
        first.add_tap(lambda *_: seen.append("a")),
        models.interceptor(router).add_tap(lambda *_: seen.append("b")),
    ]
    assert models.interceptor(router) is first
    router.module(torch.randn(1, 6))
    assert seen == ["a", "b"]
    models.remove_all(handles)
    stale = first.add_tap(lambda *_: None)  # the first object may be used again
    assert models.interceptor(router) is first
    stale.remove()
    assert models.num_intercepted() == 0


def test_a_second_model_is_untouched() -> None:  # case G06
    model, other = toy(Router()), toy(Router(), seed=1)
    seen, handles = tap_all(model)
    other_seen, other_handles = tap_all(other)
    other(torch.randn(2, 6))
    assert seen == {}
    models.remove_all(other_handles)
    model(torch.randn(2, 6))
    assert len(seen[0]) == 1
    assert len(other_seen[0]) == 1
    models.remove_all(handles)


def test_layers_made_and_dropped_leave_nothing() -> None:  # case G05
    for _ in range(200):
        model = toy(Router(), Router())
        for hook in hooks(model):
            hook.add_tap(lambda *_: None)
    del model, hook
    gc.collect()
    assert models.num_intercepted() == 0


def test_handles_of_a_dead_module_do_no_harm() -> None:  # case G04
    model = toy(Router())
    hook = hooks(model)[0]
    handle = hook.add_tap(lambda *_: None)
    del model
    gc.collect()
    handle.remove()
    with pytest.raises(moetape.InvalidArgumentError, match=r"layers\.0\.mlp\.gate.*gone"):
        hook.add_tap(lambda *_: None)


def test_a_deep_copy_is_not_intercepted_and_runs_its_own_weights() -> None:
    model = toy(Router())
    seen, handles = tap_all(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.layers[0].mlp.gate.weight.neg_()
    hidden = torch.randn(5, 6)
    _, ids = copied.layers[0].mlp.gate(hidden)
    assert seen == {}
    assert not torch.equal(ids, model.layers[0].mlp.gate(hidden)[1])
    assert len(seen[0]) == 1
    models.remove_all(handles)
    assert torch.equal(copied.layers[0].mlp.gate(hidden)[1], ids)


def test_a_wrapper_put_on_top_survives() -> None:
    model = toy(Router())
    gate = model.layers[0].mlp.gate
    seen, handles = tap_all(model)
    wrapped, calls = gate.forward, []
    gate.forward = lambda *args: (calls.append(1), wrapped(*args))[1]
    models.remove_all(handles)
    model(torch.randn(2, 6))
    assert (seen, calls) == ({}, [1])
    seen, handles = tap_all(model)
    model(torch.randn(2, 6))
    assert (len(seen[0]), calls) == (1, [1, 1])
    models.remove_all(handles)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_seen_again(reentrant: bool) -> None:  # case I03
    model = toy(Router())
    seen, handles = tap_all(model)
    hidden = torch.randn(3, 6, requires_grad=True)
    checkpoint(model.layers[0], hidden, use_reentrant=reentrant).sum().backward()
    assert len(seen[0]) == 2
    assert torch.equal(seen[0][0], seen[0][1])
    models.remove_all(handles)


def test_threads_have_their_own_forwards() -> None:
    model = toy(Router())
    counts: list[int] = []
    hook = hooks(model)[0]
    handle = hook.add_tap(lambda layer, ids: counts.append(len(ids)))
    errors: list[BaseException] = []

    def work(num_rows: int) -> None:
        try:
            for _ in range(50):
                model.layers[0].mlp.gate(torch.randn(num_rows, 6))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.remove()
    assert errors == []
    assert {n: counts.count(n) for n in (1, 2, 3)} == {1: 50, 2: 50, 3: 50}


def test_override_keeps_the_signature_and_stacks() -> None:
    import inspect

    model = toy(Router())
    plain = inspect.signature(model.forward)
    first = models.Override(model, "forward", lambda forward, hidden: forward(hidden) + 1)
    second = models.Override(model, "forward", lambda forward, hidden: forward(hidden) * 2)
    hidden = torch.randn(2, 6)
    assert inspect.signature(model.forward) == plain
    both = model(hidden)
    first.remove()  # not the outermost one
    assert torch.allclose(model(hidden) + 2, both)
    second.remove()
    assert "forward" not in model.__dict__
