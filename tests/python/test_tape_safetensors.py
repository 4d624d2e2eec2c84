"""Tapes read by the stock safetensors package and NumPy alone, as docs/tape-format.md says they can be."""

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tape-1"
TAPES = sorted(path for path in GOLDEN.glob("*.tape") if path.name != "shards.tape")
NAMES = ["a", "b", "", "ü"]


def ids_by_formula(start: int, rows: int, layers: int, top_k: int, num_experts: int) -> np.ndarray:
    """What src/tape/golden_test.cc wrote."""
    position, layer, k = np.meshgrid(
        np.arange(start, start + rows), np.arange(layers), np.arange(top_k), indexing="ij"
    )
    return (position * 7 + layer * 3 + (top_k - k) * 5) % num_experts


def metadata_of(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, "np") as file:
        return file.metadata()


def unpack(packed: np.ndarray, num_ids: int, bits: int) -> np.ndarray:
    """The codec bitpack, bit by bit."""
    stream = np.unpackbits(packed, axis=1, bitorder="little")[:, : num_ids * bits]
    return (stream.reshape(len(packed), num_ids, bits).astype(np.int64) << np.arange(bits)).sum(axis=2)


def all_ids(tape: dict[str, np.ndarray], metadata: dict[str, str]) -> np.ndarray:
    layers, top_k = json.loads(metadata["layers"]), int(metadata["top_k"])
    bits = max(1, (int(metadata["num_experts"]) - 1).bit_length())
    suffix = "" if metadata["codec"] == "none" else "." + metadata["codec"]
    groups = json.loads(metadata["layer_groups"]) if "layer_groups" in metadata else [layers]
    ids = np.empty((tape["offsets"][-1], len(layers), top_k), np.int64)
    for number, group in enumerate(groups):
        name = f"ids.g{number}" if "layer_groups" in metadata else "ids"
        part = tape[name + suffix]
        if suffix:
            part = unpack(part, len(group) * top_k, bits).reshape(-1, len(group), top_k)
        ids[:, [layers.index(layer) for layer in group]] = part
    return ids


def text(tape: dict[str, np.ndarray], name: str, sequence: int) -> str:
    begin, end = tape[f"{name}_offsets"][sequence : sequence + 2]
    return bytes(tape[f"{name}_bytes"][begin:end]).decode()


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.name)
def test_stock_safetensors_opens_every_tape(path: Path) -> None:
    metadata = metadata_of(path)
    assert metadata["format"] == "moetape.tape"
    assert metadata["format_version"] == "1"
    arrays = safetensors.numpy.load_file(path)
    tensors = safetensors.torch.load_file(path)
    assert arrays.keys() == tensors.keys()
    for name, array in arrays.items():
        if array.size:
            assert torch.equal(torch.from_numpy(array), tensors[name]), name
    # Nothing but spaces fills the header, and the data begin where vectors like them to.
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert (length + 8) % 64 == 0
    assert json.loads(content[8 : 8 + length])["__metadata__"] == metadata


@pytest.mark.parametrize(
    "path",
    [path for path in TAPES if not path.name.startswith(("shards", "channels"))],
    ids=lambda path: path.name,
)
def test_the_tensors_say_what_was_written(path: Path) -> None:
    metadata = metadata_of(path)
    tape = safetensors.numpy.load_file(path)
    layers, top_k = json.loads(metadata["layers"]), int(metadata["top_k"])
    ids = all_ids(tape, metadata)
    rows = np.diff(tape["offsets"])
    assert rows.tolist() == [9, 0, 1100, 4]
    assert tape["start"].tolist() == [5, 2, 0, 30]
    assert [text(tape, "sequence_id", i) for i in range(4)] == NAMES
    assert text(tape, "meta", 0) == '{"reward":1.5}'
    valid = np.ones(len(ids), bool)
    if "valid" in tape:
        valid = np.unpackbits(tape["valid"], bitorder="little")[: len(ids)].astype(bool)
    assert ("valid" in tape) == (path.name != "plain.tape")
    for sequence, start in enumerate(tape["start"]):
        begin, end = tape["offsets"][sequence : sequence + 2]
        position = np.arange(start, start + end - begin)
        missing = (position % 3 == 1) & (sequence in (0, 3)) & ("valid" in tape)
        assert np.array_equal(valid[begin:end], ~missing)
        expected = ids_by_formula(start, end - begin, len(layers), top_k, int(metadata["num_experts"]))
        assert np.array_equal(ids[begin:end], np.where(missing[:, None, None], 0, expected))


def test_the_example_of_the_format_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "tape-format.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shutil.copy(GOLDEN / "everything.tape", tmp_path / "run.tape")
    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(example, names)
    assert names["valid"].tolist() == [1, 0, 1, 1]
    assert np.array_equal(names["ids"][0], ids_by_formula(30, 1, 3, 2, 11)[0])


def test_versions_and_tokens_are_where_they_are_said_to_be() -> None:
    tape = safetensors.numpy.load_file(GOLDEN / "everything.tape")
    assert tape["token_offsets"].tolist() == [-1, -1, 0, 1100]
    assert tape["tokens"][:3].tolist() == [-500, 500, 1500]
    assert tape["tokens"][1100:].tolist() == [29_500, 30_500, 31_500, 32_500]
    versions = {
        (begin, end): version
        for (begin, end), version in zip(
            tape["version_rows"].tolist(), tape["version_ids"].tolist(), strict=True
        )
    }
    # Sequence 0 has rows 0 to 8 at positions 5 to 13, of which 7, 10 and 13 are missing.
    assert versions == {
        (0, 2): 3,
        (3, 4): 3,
        (4, 5): 16_777_214,
        (6, 8): 16_777_214,
        (9, 559): 3,
        (559, 1109): 16_777_214,
    }


def test_a_reader_that_knows_no_codecs_finds_no_ids() -> None:
    assert "ids" not in safetensors.numpy.load_file(GOLDEN / "bitpack.tape")
