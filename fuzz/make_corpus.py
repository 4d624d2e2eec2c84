"""Writes what the fuzz targets begin with: make_corpus.py. Everything by moetape itself, from fixed seeds.

corpus/TARGET holds inputs that must be taken, refused/TARGET the same with one thing wrong that must be
refused: cut, one byte changed, an id that is no expert, a repeated id, other counts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import moetape as mt

HERE = Path(__file__).parent
# Those of fuzz.cc.
SPECS = {
    "narrow": mt.RouteSpec([1, 2, 4], top_k=2, num_experts=8),
    "wide": mt.RouteSpec([0, 1], top_k=3, num_experts=300, num_layers=3),
    "repeats": mt.RouteSpec([0, 1], top_k=2, num_experts=2, distinct=False),
}
DIALECTS = [dialect for dialect in mt.wire.DIALECTS if dialect != "tape"]  # has a target of its own


def _routes_of(spec: mt.RouteSpec, num_rows: int) -> mt.Routes:
    scores = np.random.default_rng(num_rows).random((num_rows, spec.num_moe_layers, spec.num_experts))
    return mt.Routes.from_ids(spec, np.argsort(scores, axis=2)[:, :, : spec.top_k])


def _as_bytes(form: object) -> bytes:
    if isinstance(form, str):
        return form.encode()
    return form if isinstance(form, bytes) else np.ascontiguousarray(form).tobytes()


def _write(kind: str, target: str, name: str, data: bytes) -> None:
    folder = HERE / kind / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def _write_dialect(dialect: str) -> None:
    for name, spec in SPECS.items():
        for num_rows in (0, 1, 3):
            if dialect == "vllm-split" and num_rows == 0:
                continue
            data = _as_bytes(mt.encode(_routes_of(spec, num_rows), dialect))
            _write("corpus", dialect, f"{name}-{num_rows}", data)
    good = _as_bytes(mt.encode(_routes_of(SPECS["narrow"], 3), dialect))
    bad = mt.Routes.from_ids(
        mt.RouteSpec(SPECS["narrow"].layers, top_k=2, num_experts=256), np.full((3, 3, 2), [200, 201])
    )
    other = mt.RouteSpec([0, 5, 6], top_k=5, num_experts=8)
    _write("refused", dialect, "cut", good[:-1])
    _write("refused", dialect, "longer", good + b"!")
    _write("refused", dialect, "no-experts", _as_bytes(mt.encode(bad, dialect)))
    _write("refused", dialect, "other-shape", _as_bytes(mt.encode(_routes_of(other, 1), dialect)))


def _answer(routes: mt.Routes) -> dict[str, bytes]:
    sglang, vllm = mt.encode(routes, "sglang"), mt.encode(routes, "vllm")
    answers = {
        "sglang-generate": {"text": "a", "meta_info": {"id": "1", "routed_experts": sglang}},
        "sglang-chat": {
            "choices": [{"index": 0, "message": {"content": "a"}}],
            "sglext": {"routed_experts": sglang},
        },
        "vllm-chat": {"choices": [{"index": i, "message": {}, "routed_experts": vllm} for i in range(2)]},
        "lightllm": {"generated_text": "a", "routed_experts": json.loads(mt.encode(routes, "lightllm"))},
        "prime-rl": {"choices": [{"index": 0, "routed_experts": json.loads(mt.encode(routes, "prime-rl"))}]},
        "megatron": {"choices": [{"moe_topk_indices": json.loads(mt.encode(routes, "megatron"))}]},
    }
    return {name: json.dumps(value).encode() for name, value in answers.items()}


def _write_answers() -> None:
    for spec_name, spec in SPECS.items():
        for name, data in _answer(_routes_of(spec, 2)).items():
            _write("corpus", "answer", f"{name}-{spec_name}", data)
    good = _answer(_routes_of(SPECS["narrow"], 2))["vllm-chat"]
    _write("refused", "answer", "cut", good[:-1])
    _write("refused", "answer", "no-routes", b'{"choices":[{"index":0,"text":"a"}]}')
    _write("refused", "answer", "empty", b"")
    _write("refused", "answer", "deep", b"[" * 3000)


def _write_tapes() -> None:
    for name, spec in SPECS.items():
        run = [_routes_of(spec, 3), _routes_of(spec, 0), _routes_of(spec, 5)]
        run[0] = run[0].with_tokens(np.arange(3, dtype=np.int32))
        groups = [[layer] for layer in spec.layers]
        _write("corpus", "tape", name, mt.tape_bytes(run, sequence_ids=list("abc"), metas=["{}", "", "m"]))
        _write("corpus", "tape", f"{name}-bitpack", mt.tape_bytes(run, codec="bitpack", layer_groups=groups))
    holes = mt.Routes.from_ids(
        SPECS["narrow"], _routes_of(SPECS["narrow"], 4).ids, valid=[1, 0, 0, 1], version=3
    )
    _write("corpus", "tape", "missing", mt.tape_bytes([holes, run[0]][:1]))
    _write("corpus", "tape", "empty", mt.tape_bytes([], spec=SPECS["narrow"]))
    good = mt.tape_bytes([_routes_of(SPECS["narrow"], 3)])
    header = int.from_bytes(good[:8], "little")
    _write("refused", "tape", "cut", good[:-1])
    _write("refused", "tape", "cut-in-header", good[:500])
    _write("refused", "tape", "longer", good + b"\0")
    _write("refused", "tape", "no-header", good[:8])
    _write("refused", "tape", "nothing", b"")
    _write("refused", "tape", "huge-header", (2**62).to_bytes(8, "little") + good[8:])
    _write("refused", "tape", "flipped-header", good.replace(b'"top_k":"2"', b'"top_k":"3"'))
    _write(
        "refused",
        "tape",
        "flipped-id",
        bytes([*good[: header + 8], good[header + 8] ^ 1, *good[header + 9 :]]),
    )
    spaced = (header + 1).to_bytes(8, "little") + good[8 : 8 + header] + b" " + good[8 + header :]
    _write("refused", "tape", "unaligned-data", spaced)
    _write("refused", "tape", "newer", good.replace(b'"format_version":"1"', b'"format_version":"9"'))


def _write_indices() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.tape")
        mt.save(
            path,
            [_routes_of(SPECS["narrow"], 2000), _routes_of(SPECS["narrow"], 2001)],
            max_file_bytes=20_000,
        )
        good = path.read_bytes()
    _write("corpus", "tape-index", "two", good)
    _write("refused", "tape-index", "cut", good[:-1])
    _write("refused", "tape-index", "flipped", good.replace(b"2000", b"2002"))
    _write("refused", "tape-index", "digits", good.replace(b'"header_xxh3":"', b'"header_xxh3":"\\f', 1))
    _write("refused", "tape-index", "nothing", b"")


if __name__ == "__main__":
    for kind in ("corpus", "refused"):
        shutil.rmtree(HERE / kind, ignore_errors=True)
    for dialect in DIALECTS:
        _write_dialect(dialect)
    _write_answers()
    _write_tapes()
    _write_indices()
