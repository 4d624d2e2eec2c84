"""The recipes of docs/trainers.md run as they stand, against trainers' code or the forms they document."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import moetape as mt  # noqa: E402
from core_helpers import distinct_ids  # noqa: E402
from megatron_run import VERSIONS, check, names  # noqa: E402
from peer_code import peer_code  # noqa: E402
from recipe_code import recipe, source  # noqa: E402

TRAINERS = ["SkyRL", "ms-swift", "AReaL", "NeMo-RL", "prime-rl"]
SPEC = mt.RouteSpec(layers=[1, 2, 4], top_k=4, num_experts=64, num_layers=5)
IDS = distinct_ids(24, SPEC)
ROUTES = mt.Routes.from_ids(SPEC, IDS)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_recipe_has_at_most_twenty_lines(trainer: str) -> None:
    assert len([line for line in source(trainer).splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param(
            version, name, id=f"{name}-{version}", marks=pytest.mark.xdist_group(f"recipes-{version}")
        )
        for version in VERSIONS
        for name in names("recipes_tests")
    ],
)
def test_on_megatron(version: str, name: str) -> None:
    check(version, 1, ("recipes_tests",), name)


def test_areal_keeps_the_rows_of_the_part_that_sampled_them() -> None:
    # case C04; trap 6
    import pybase64

    parse = peer_code(
        "areal-1.0.4",
        "areal/engine/sglang_remote.py",
        "SGLangBackend.parse_generation_response",
        np=np,
        pybase64=pybase64,
        HttpGenerationResult=SimpleNamespace,
    ).parse_generation_response
    later = mt.Routes.from_ids(SPEC, (IDS + 1) % 64)  # other weights, when the request went on

    def response(routes: mt.Routes, prompt: int) -> SimpleNamespace:
        rows = len(routes)
        answer = {
            "finish_reason": {"type": "stop"},
            "prompt_tokens": prompt,
            "completion_tokens": rows + 1 - prompt,
            "output_token_logprobs": [],
            "routed_experts": mt.encode(routes, "sglang"),
        }
        result: SimpleNamespace = parse(None, {"meta_info": answer})
        return result

    parts = [response(ROUTES.slice(0, 10), 4), response(later, 11)]
    routes = recipe("AReaL").routes_of(SPEC, parts)
    assert routes.slice(0, 10) == ROUTES.slice(0, 10)
    assert routes.slice(10, 24) == later.slice(10, 24)
    assert len(routes) == 24
    assert sum(len(part.routed_experts) for part in parts) == 34  # joined end to end


def test_nemo_rls_text_says_what_it_documents() -> None:
    # nrlre1:<type>:SxLxK:<base64>, rows without a record -1
    valid = np.ones(24, bool)
    valid[5] = False
    text = recipe("NeMo-RL").envelope(mt.Routes.from_ids(SPEC, IDS, valid=valid))
    magic, kind, shape, data = text.split(":")
    assert (magic, kind, shape) == ("nrlre1", "int8", "24x5x4")
    rows = np.frombuffer(base64.b64decode(data), np.int8).reshape(24, 5, 4)
    assert (rows[5] == -1).all()
    assert np.array_equal(np.delete(rows, 5, axis=0)[:, list(SPEC.layers)], np.delete(IDS, 5, axis=0))


@pytest.mark.parametrize("cp_size", [1, 2, 3])
def test_prime_rl_gets_each_ranks_rows(cp_size: int) -> None:
    # case I20; trap 2
    written = recipe("prime-rl")
    samples = [
        json.loads(mt.encode(ROUTES, "prime-rl")),
        json.loads(mt.encode(ROUTES.slice(3, 9), "prime-rl")),
    ]
    lengths = [25, 10]
    whole, recorded = [], []
    for rank in range(cp_size):
        ids, takes = written.routed_experts(SPEC, samples, lengths, cp_size, rank)
        assert ids.dtype == torch.int32
        assert ids.shape == (1, -(-35 // cp_size), 5, 4)
        ordered = ids[0][:, list(SPEC.layers)].sort(dim=-1).values
        assert (ordered[..., 1:] != ordered[..., :-1]).all(), "padding repeats an expert"
        whole.append(ids[0])
        recorded.append(takes)
    takes, ids = torch.cat(recorded), torch.cat(whole)[:, list(SPEC.layers)]
    wanted = torch.zeros(len(takes), dtype=torch.bool)
    wanted[:24] = True
    wanted[25 + 3 : 25 + 9] = True
    assert torch.equal(takes, wanted)
    assert np.array_equal(ids[:24], IDS)
    assert np.array_equal(ids[28:34], IDS[3:9])
