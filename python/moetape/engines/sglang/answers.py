"""What stands in an answer: the routes in the form that was asked for, and what is missing of them.

A request chooses by `custom_params={"moetape": {"form": …, "last_row": …}}` in its sampling parameters; the
server's default form is in the environment variable MOETAPE_SGLANG_FORM.

    int32    SGLang's own: base64 of int32 [rows, layers, k]; -1 in all ids of a missing row (the default)
    narrow   the same in uint8 or uint16; a record with missing rows comes as int32
    tape     base64 of a tape of one sequence: ids, token ids, versions, which rows are missing

The scheduler ships the rows as they are kept; the process behind it makes the text.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from moetape import InvalidArgumentError, Routes, encode, tape_bytes
from moetape.engines.sglang.capturer import all_layers

FORMS = ("int32", "narrow", "tape")
PARAMS = "moetape"
DEFAULT_FORM = "MOETAPE_SGLANG_FORM"


@dataclass(frozen=True)
class Options:
    """What one request asks for.

    last_row: a request that samples nothing (max_new_tokens=0) feeds all its tokens; also give the last one's
    row, which SGLang leaves out.
    """

    form: str = "int32"
    last_row: bool = False

    @classmethod
    def of(cls, custom_params: Any) -> Options:
        """Read the options of a request. Raises InvalidArgumentError naming the one that is wrong."""
        given = custom_params.get(PARAMS) if isinstance(custom_params, Mapping) else None
        given = {} if given is None else given
        if not isinstance(given, Mapping) or not given.keys() <= {"form", "last_row"}:
            raise InvalidArgumentError(
                f"custom_params[{PARAMS!r}]: expected an object of form and last_row, got {given!r}"
            )
        form = given.get("form", os.environ.get(DEFAULT_FORM, "int32"))
        if form not in FORMS:
            raise InvalidArgumentError(f"form of routed experts: expected one of {FORMS}, got {form!r}")
        last_row = given.get("last_row", False)
        if not isinstance(last_row, bool):
            raise InvalidArgumentError(f"last_row: expected true or false, got {last_row!r}")
        return cls(form, last_row)


@dataclass(frozen=True)
class Shipment:
    """The routes of one answer on their way from the scheduler to whoever makes the text."""

    routes: Routes
    form: str

    def dtype(self) -> str:
        """Of the ids in the text: uint8, uint16 or int32; or tape."""
        if self.form == "narrow" and self.routes.complete:
            return str(self.routes.ids.dtype)
        return "tape" if self.form == "tape" else "int32"

    def notes(self) -> dict[str, Any]:
        """What the answer says beside the text; nothing where it is exactly SGLang's own."""
        notes: dict[str, Any] = {}
        if self.form != "int32":
            notes["routed_experts_dtype"] = self.dtype()
        if not self.routes.complete:
            notes["routed_experts_missing"] = self.routes.missing
        return notes

    def text(self) -> str:
        """The text of the answer."""
        if self.form == "tape":
            return base64.b64encode(tape_bytes([self.routes])).decode()  # type: ignore[arg-type]
        if self.routes.complete:
            return str(encode(self.routes, "sglang", dtype=self.dtype()))
        return base64.b64encode(all_layers(self.routes).data).decode()


def shipped(shipment: Shipment, by_pickle: bool) -> Any:
    """A shipment as SGLang's messages carry it: objects where they are pickled, else tensors."""
    if by_pickle:
        return shipment
    return torch.frombuffer(bytearray(pickle.dumps(shipment, protocol=5)), dtype=torch.uint8)


def arrived(item: Any) -> Any:
    """The Shipment in what a message carried; anything else, such as SGLang's own tensor, as it is."""
    if isinstance(item, torch.Tensor) and item.dtype == torch.uint8 and item.dim() == 1:
        return pickle.loads(item.numpy().tobytes())
    return item
