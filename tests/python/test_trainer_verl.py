"""verl's router replay by its names, call by call beside verl's own functions on random inputs."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import moetape as mt  # noqa: E402
from megatron_marks import on_ranks  # noqa: E402
from megatron_run import check  # noqa: E402
from moetape.trainers import verl as ours  # noqa: E402
from peer_code import Group, peer_code, stub_modules  # noqa: E402
from peer_ranks import SEEDS, Rank  # noqa: E402

UTILS = "verl/utils/megatron/router_replay_utils.py"
NUM_EXPERTS, TOP_K = 16, 3


@pytest.fixture(params=SEEDS)
def rank(request: pytest.FixtureRequest) -> Rank:
    return Rank.random(request.param)


def router_replay() -> Any:
    """verl's class and its enum."""
    import enum

    return peer_code(
        "verl-0.9.1",
        "verl/utils/megatron/router_replay_patch.py",
        "RouterReplayAction",
        "RouterReplay",
        torch=torch,
        Enum=enum.Enum,
        __name__=__name__,
    )


def config(rank: Rank, num_layers: int = 4, **changes: Any) -> SimpleNamespace:
    """A model whose first layer is dense."""
    settings = {
        "num_layers": num_layers,
        "moe_layer_freq": [0] + [1] * (num_layers - 1),
        "num_moe_experts": NUM_EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_router_load_balancing_type": "none",
        "sequence_parallel": rank.tp.size() > 1,
        "fp8": None,
        "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_size": 1,
    }
    return SimpleNamespace(**{**settings, **changes})


class TopKRouter(torch.nn.Module):  # type: ignore[misc]
    """As far as it is walked to; it counts as Megatron's by its name and its base's."""

    def __init__(self, layer_number: int, replay: Any) -> None:
        super().__init__()
        self.layer_number, self.router_replay = layer_number, replay


Router = type("Router", (TopKRouter,), {"__module__": "megatron.core.transformer.moe.router"})


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, replay: Callable[[], Any], layers: list[int]) -> None:
        super().__init__()
        self.decoder = torch.nn.ModuleList(Router(layer + 1, replay()) for layer in layers)

    @property
    def replays(self) -> list[Any]:
        return [router.router_replay for router in self.decoder]


def ranks_of(rank: Rank) -> SimpleNamespace:
    ranks = rank.ranks
    ranks.get_context_parallel_group = lambda: rank.cp
    ranks.get_dynamic_data_context_parallel_groups = lambda group_size: rank.cp
    return ranks


def verl(rank: Rank) -> SimpleNamespace:
    """verl's functions on one rank, Megatron's answers standing in."""
    logger: Any = logging.getLogger("verl")
    logger.warning_once = logger.debug
    cut = peer_code(
        "verl-0.9.1",
        "verl/models/mcore/util.py",
        "preprocess_packed_seqs",
        "preprocess_thd_engine",
        "preprocess_for_mindspeed",
        "_compute_fp8_thd_align_size",
        torch=torch,
        math=math,
        mpu=ranks_of(rank),
        PackedSeqParams=SimpleNamespace,
        _packed_seq_params_supports=lambda name: True,
        _PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE=True,
        is_npu_available=False,
        logger=logger,
    )

    def scatter(rows: Any) -> Any:
        part = len(rows) // rank.tp.size()
        return rows[rank.tp.rank() * part : (rank.tp.rank() + 1) * part]

    return peer_code(
        "verl-0.9.1",
        UTILS,
        "set_router_replay_data",
        "align_r3_router_replay_data",
        "build_r3_replay_mask",
        "iter_model_routers",
        "is_moe_layer",
        "merge_nested_router_maps",
        "_context_parallel_layout",
        torch=torch,
        device_name="cpu",
        scatter_to_sequence_parallel_region=scatter,
        TopKRouter=TopKRouter,
        **vars(cut),
    )


def stood_in(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Rank:
    stub_modules(monkeypatch, {"megatron.core.parallel_state": ranks_of(rank)})
    return rank


@pytest.fixture
def here(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return stood_in(rank, monkeypatch)


def jagged(parts: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def ids_of(lengths: list[int], num_layers: int, seed: int = 0) -> list[Any]:
    """Distinct experts [n, layers, k] of each sequence, int16 as verl keeps them."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(length, num_layers, NUM_EXPERTS, generator=generator).argsort(-1)[..., :TOP_K].short()
        for length in lengths
    ]


def given(replay: Any) -> tuple[Any, Any]:
    """(ids, mask) of what a router was told, masked rows as -1."""
    ids, mask = replay.target_topk_idx.long(), replay.target_replay_mask
    mask = torch.ones(len(ids), dtype=torch.bool) if mask is None else mask
    return torch.where(mask[:, None], ids, -1), mask


def is_padding(rank: Rank, config: Any) -> Any:
    from moetape.trainers.verl._rows import Layout

    return torch.from_numpy(Layout(config).here(rank.lengths).ids == 0)


@pytest.mark.parametrize("fp8", [None, "hybrid"])
@pytest.mark.parametrize("layers", ["all", "moe"])
def test_r3_gives_the_rows_that_verl_gives(here: Rank, layers: str, fp8: str | None) -> None:
    # case I05, I10
    settings = config(here, fp8=fp8)
    lengths = [length + 1 for length in here.lengths]
    rank = Rank(lengths, here.cp, here.tp)
    tokens = jagged([torch.arange(length) for length in lengths])
    responses = torch.tensor([[0, 1]] * len(lengths))
    if len(lengths) > 1:
        responses[1] = 0  # a sequence without a response is not replayed
    routes = jagged(ids_of([length - 1 for length in lengths], 4 if layers == "all" else 3))
    found = []
    for api, replay in ((verl(rank), router_replay().RouterReplay), (ours, ours.RouterReplay)):
        model = Model(replay, [1, 2, 3])
        aligned = api.align_r3_router_replay_data(routes, tokens)
        assert [one.shape for one in aligned.unbind()] == [
            (length, *routes.unbind()[0].shape[1:]) for length in lengths
        ]
        mask = api.build_r3_replay_mask(tokens, responses)
        api.set_router_replay_data(aligned, None, settings, 0, replay_mask=mask, model=model)
        found.append([given(one) for one in model.replays])
    for (their_ids, their_mask), (ids, mask) in zip(*found, strict=True):
        assert torch.equal(their_mask, mask)
        assert torch.equal(their_ids, ids)


def test_r2_gives_the_rows_that_verl_gives_and_no_padding(here: Rank) -> None:
    # case I10; trap 2
    settings = config(here)
    routes = jagged(ids_of(here.lengths, 3))
    found = []
    for api, replay in ((verl(here), router_replay().RouterReplay), (ours, ours.RouterReplay)):
        model = Model(replay, [1, 2, 3])
        api.set_router_replay_data(routes, None, settings, 0, model=model)
        found.append([given(one) for one in model.replays])
    padding = is_padding(here, settings)
    for (their_ids, _), (ids, mask) in zip(*found, strict=True):
        assert torch.equal(their_ids[~padding], ids[~padding])
        assert torch.equal(mask, ~padding)
        assert not their_ids[padding].any()  # verl: expert 0, k times


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("variant", [None, "dsv4_hybrid"])
def test_other_layouts_give_the_rows_that_verl_gives(
    here: Rank, variant: str | None, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case I10: DeepSeek-V4's contiguous cut with a full window, and groups of context by micro-batch
    if dynamic:
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank())
    settings = config(here, experimental_attention_variant=variant, csa_window_size=24)
    routes = jagged(ids_of(here.lengths, 4))
    mask = jagged([torch.arange(length) % 3 > 0 for length in here.lengths])
    found = []
    for api, replay in ((verl(here), router_replay().RouterReplay), (ours, ours.RouterReplay)):
        model = Model(replay, [1, 2, 3])
        size = here.cp.size() if dynamic else None
        api.set_router_replay_data(
            routes, None, settings, 0, replay_mask=mask, local_cp_size=size, model=model
        )
        found.append([given(one) for one in model.replays])
    for (their_ids, their_mask), (ids, own_mask) in zip(*found, strict=True):
        assert torch.equal(their_mask, own_mask)
        assert torch.equal(their_ids, ids)


def test_padded_batches_give_the_rows_that_verl_gives(here: Rank) -> None:
    # case I10
    settings = config(here)
    _, attention_mask = here.left_padded()
    routes = torch.zeros(*attention_mask.shape, 4, TOP_K, dtype=torch.int16)
    routes[attention_mask] = torch.cat(ids_of(here.lengths, 4))
    found = []
    for api, replay in ((verl(here), router_replay().RouterReplay), (ours, ours.RouterReplay)):
        model = Model(replay, [1, 2, 3])
        api.set_router_replay_data(routes, attention_mask, settings, 0, model=model)
        found.append([given(one) for one in model.replays])
    padding = is_padding(here, settings)
    for (their_ids, _), (ids, mask) in zip(*found, strict=True):
        assert torch.equal(their_ids[~padding], ids[~padding])
        assert torch.equal(mask, ~padding)


def test_masks_and_maps_are_verls(rank: Rank) -> None:
    tokens = jagged([torch.arange(length) for length in rank.lengths])
    responses = torch.tensor([[random.Random(at).randint(0, 1)] for at in range(len(rank.lengths))])
    theirs = verl(rank)
    mask = ours.build_r3_replay_mask(tokens, responses)
    assert torch.equal(mask.values(), theirs.build_r3_replay_mask(tokens, responses).values())
    assert torch.equal(mask.offsets(), tokens.offsets())
    maps = [jagged(ids_of(rank.lengths, 2, seed)) for seed in range(2)]
    merged, wanted = ours.merge_nested_router_maps(maps), theirs.merge_nested_router_maps(maps)
    assert torch.equal(merged.values(), wanted.values())
    assert merged.dtype == wanted.dtype == torch.int16


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return stood_in(Rank([5, 3], Group(1, 0), Group(1, 0)), monkeypatch)


def test_a_row_of_minus_one_is_missing(alone: Rank) -> None:
    # case I16, I22
    ids = ids_of([5, 3], 4)
    ids[0][2] = -1
    model = Model(ours.RouterReplay, [1, 2, 3])
    ours.set_router_replay_data(jagged(ids), None, config(alone), model=model)
    assert given(model.replays[0])[1].tolist() == [True, True, False, True, True, True, True, True]


def test_what_verl_replays_in_silence_is_an_error(alone: Rank) -> None:
    # case I07; trap 1, 2, 9, 22
    rank, model = alone, Model(ours.RouterReplay, [1, 2, 3])
    good = ids_of([5, 3], 4)

    def refused(ids: list[Any], error: type[Exception], message: str, **changes: Any) -> None:
        with pytest.raises(error, match=message):
            ours.set_router_replay_data(jagged(ids), None, config(rank, **changes), model=model)
        assert all(one.target_topk_idx is None for one in model.replays)

    zeros = [one.clone() for one in good]
    zeros[1][2] = 0
    refused(zeros, mt.InvalidArgumentError, r"sample 1: .*row 2.*; a row without a record is -1")
    large = [one.clone() for one in good]
    large[0][1, 2, 0] = NUM_EXPERTS
    refused(large, mt.OutOfRangeError, "sample 0: ")
    partly = [one.clone() for one in good]
    partly[0][1, 2, 0] = -1
    refused(partly, mt.OutOfRangeError, "sample 0: ")
    refused(
        [one[:, :2] for one in good], mt.WrongShapeError, "expected 4 layers, or the 3 with experts, got 2"
    )
    refused([one[..., :2] for one in good], mt.WrongShapeError, r"expected \[rows, layers, 3\]")
    refused(good, mt.UnsupportedError, "moe_router_fusion", moe_router_fusion=True)
    refused(good, mt.UnsupportedError, "sinkhorn", moe_router_load_balancing_type="sinkhorn")
    with pytest.raises(mt.NotCapturedError, match="got None"):
        ours.set_router_replay_data(None, None, config(rank), model=model)
    with pytest.raises(mt.NotCapturedError, match="routers in the model"):
        ours.set_router_replay_data(jagged(good), None, config(rank), model=torch.nn.Linear(1, 1))
    tokens = jagged([torch.arange(7), torch.arange(3)])
    with pytest.raises(mt.WrongShapeError, match="sample 0: expected 7 rows as tokens, or one less, got 5"):
        ours.align_r3_router_replay_data(jagged(good), tokens)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_alignment_says_which_row_is_missing(kind: Any) -> None:
    # case I22; trap 16
    ids = ids_of([4, 3], 2)
    aligned = ours.align_r3_router_replay_data(
        jagged([one.to(kind) for one in ids]), jagged([torch.arange(5), torch.arange(3)])
    ).unbind()
    assert torch.equal(aligned[0][:4].long(), ids[0].long())
    assert (aligned[0][4] == -1).all()
    assert torch.equal(aligned[1].long(), ids[1].long())


def native(scores: Any, k: int, num_groups: Any = None, group_topk: Any = None) -> Any:
    return torch.topk(scores, k, dim=1)


def test_a_router_answers_as_verls() -> None:
    scores = [torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    mask = torch.tensor([True, False, True, True, False, True])
    found = []
    for api in (router_replay(), ours):
        replay, action = api.RouterReplay, api.RouterReplayAction
        one = replay()
        seen = []
        one.set_router_replay_action(action.RECORD)
        seen += one.get_replay_topk(scores[0], 2, None, None, native)
        foreign = (one.get_recorded_indices() + 1) % 8
        for step in range(2):
            one.set_router_replay_action(action.REPLAY_FORWARD)
            one.set_target_indices((foreign + step) % 8, replay_mask=mask if step else None)
            seen += one.get_replay_topk(scores[step], 2, None, None, native)
        one.set_router_replay_action(action.REPLAY_BACKWARD)
        for step in range(2):
            seen += one.get_replay_topk(scores[step], 2, None, None, native)
        assert not one.replay_backward_list
        assert not one.replay_backward_mask_list
        one.clear_indices()
        one.set_router_replay_action(action.REPLAY_FORWARD)
        seen += one.get_replay_topk(scores[0], 2, None, None, native)  # given nothing: live
        found.append(seen)
        assert len(replay.router_instances) == 1
        replay.router_instances.clear()
    assert all(map(torch.equal, *found))
    public = {name for name in dir(router_replay().RouterReplay) if not name.startswith("_")}
    assert public <= set(dir(ours.RouterReplay))


def test_a_live_choice_is_kept_for_recomputation() -> None:
    # case I17; trap 5: verl chooses again, and may choose otherwise.
    scores = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < 4
    kept = []
    for api in (router_replay(), ours):
        one = api.RouterReplay()
        one.set_target_indices(native(-scores, 2)[1], replay_mask=mask)
        one.set_router_replay_action(api.RouterReplayAction.REPLAY_FORWARD)
        first = one.get_replay_topk(scores, 2, None, None, native)[1]
        one.set_router_replay_action(api.RouterReplayAction.REPLAY_BACKWARD)
        again = one.get_replay_topk(-scores, 2, None, None, native)[1]  # as if the router's input had moved
        kept.append(torch.equal(first, again))
        api.RouterReplay.router_instances.clear()
    assert kept == [False, True]


def test_ids_that_cannot_be_right_are_errors_and_recomputation_without_ids_too() -> None:
    one = ours.RouterReplay()
    ids = torch.tensor([[0, 1], [2, 2]])
    with pytest.raises(mt.InvalidArgumentError, match="different ids"):
        one.set_target_indices(ids)
    with pytest.raises(mt.WrongShapeError, match="replay_mask"):
        one.set_target_indices(ids, replay_mask=torch.ones(3, dtype=torch.bool))
    one.set_target_indices(ids, replay_mask=torch.tensor([True, False]))
    scores = torch.randn(2, 4)
    one.set_router_replay_action(ours.RouterReplayAction.REPLAY_FORWARD)
    one.get_replay_topk(scores, 2, None, None, native)
    one.set_router_replay_action(ours.RouterReplayAction.REPLAY_BACKWARD)
    one.get_replay_topk(scores, 2, None, None, native)
    with pytest.raises(mt.NotCapturedError, match="got none left"):
        one.get_replay_topk(scores, 2, None, None, native)
    one.set_target_indices(ids, replay_mask=torch.tensor([True, False]))
    with pytest.raises(mt.NotCapturedError, match="a forward before recomputation"):
        one.get_replay_topk(scores, 2, None, None, native)
    ours.RouterReplay.router_instances.clear()


@on_ranks(1, "verl_one_rank_tests")
def test_in_models_on_one_rank(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)


@on_ranks(2, "verl_two_rank_tests")
def test_in_models_on_two_ranks(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    check(version, world, modules, name)
