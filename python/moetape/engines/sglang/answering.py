"""The plug-in in the processes that make answers: texts of routes, notes beside them, every choice."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from moetape.engines.sglang.answers import PARAMS, Options, Shipment, arrived
from moetape.engines.sglang.scheduling import NOTES

logger = logging.getLogger(__name__)

FIELD = "routed_experts"
BESIDE = ("routed_experts_dtype", "routed_experts_missing", "routed_experts_error")
PER_CHOICE = "routed_experts_choices"
_LOST = "!"  # begins no base64: what follows says why there is no text
_CHOICES = "_moetape_choices"  # of a request object: {index: what its answer says of routes}


def encode_per_request(own: Any, items: Any) -> Any:
    """Around DetokenizerManager._b64_encode_per_request."""
    return None if items is None else [_text(own, item) for item in items]


def _text(own: Any, item: Any) -> str | None:
    try:
        item = arrived(item)
        return item.text() if isinstance(item, Shipment) else own([item])[0]
    except Exception as error:
        logger.exception("moetape: routes of an answer were lost")
        return f"{_LOST}{type(error).__name__}: {error}"


async def handle_batch_output(own: Any, manager: Any, batch: Any) -> Any:
    """Before TokenizerManager._handle_batch_output: without a detokenizer the texts are made here."""
    items = getattr(batch, FIELD, None)
    if items and any(item is not None for item in items):
        texts = [item if item is None or isinstance(item, str) else _text(list, item) for item in items]
        lost = [isinstance(text, str) and text.startswith(_LOST) for text in texts]
        if any(lost):
            _note_lost(batch, texts, lost)
        batch.routed_experts = [None if is_lost else text for is_lost, text in zip(lost, texts, strict=True)]
    return await own(manager, batch)


def _note_lost(batch: Any, texts: list[Any], lost: list[bool]) -> None:
    """Answers whose text could not be made say why."""
    from sglang.srt.managers.io_struct import unwrap_from_pickle, wrap_as_pickle

    info = unwrap_from_pickle(batch.customized_info) or {}
    notes = info.get(NOTES) or [None] * len(texts)
    info[NOTES] = [
        {"routed_experts_error": text.removeprefix(_LOST)} if is_lost else note
        for text, is_lost, note in zip(texts, lost, notes, strict=True)
    ]
    batch.customized_info = wrap_as_pickle(info)


def update_request_meta_info(
    own: Any, manager: Any, meta_info: dict[str, Any], state: Any, customized_info: dict[str, Any], *args: Any
) -> Any:
    """Around TokenizerManager.update_request_meta_info: our notes become fields of their own."""
    notes = customized_info.get(NOTES)
    if notes is not None:
        index = args[0]
        meta_info.update(notes[index] or {})
        customized_info = {key: value for key, value in customized_info.items() if key != NOTES}
    return own(manager, meta_info, state, customized_info, *args)


async def generate_request(own: Any, manager: Any, obj: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    """Around TokenizerManager.generate_request: wrong options are refused, choices remembered."""
    choices: dict[int, dict[str, Any]] = {}
    asked = getattr(obj, "return_routed_experts", False)
    if asked:
        _check_options(obj.sampling_params)
        setattr(obj, _CHOICES, choices)
    async with contextlib.aclosing(own(manager, obj, *args, **kwargs)) as items:
        async for item in items:
            if asked and isinstance(item, dict) and (said := _said(item)):
                choices[item.get("index", 0)] = said
            yield item


def _check_options(sampling_params: Any) -> None:
    for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
        custom = params.get("custom_params") if isinstance(params, dict) else None
        if isinstance(custom, dict) and PARAMS in custom:
            Options.of(custom)  # a ValueError, which SGLang answers with 400


def _said(answer: dict[str, Any]) -> dict[str, Any]:
    """What one choice's answer says of routes."""
    meta_info = answer.get("meta_info", {})
    return {name: meta_info[name] for name in (FIELD, *BESIDE) if meta_info.get(name) is not None}


def extend_fields() -> None:
    """SglExt, which completions and chat answer with, gets the fields that /generate has."""
    from sglang.srt.entrypoints.openai import protocol

    annotations: dict[str, Any] = {
        "routed_experts_dtype": str | None,
        "routed_experts_missing": dict[str, int] | None,
        "routed_experts_error": str | None,
        PER_CHOICE: list[dict[str, Any]] | None,
    }
    from pydantic.fields import FieldInfo

    for name, annotation in annotations.items():
        protocol.SglExt.model_fields[name] = FieldInfo(annotation=annotation, default=None)
        protocol.SglExt.__annotations__[name] = annotation
    for model in (
        protocol.SglExt,
        protocol.CompletionResponse,
        protocol.CompletionStreamResponse,
        protocol.ChatCompletionResponse,
        protocol.ChatCompletionStreamResponse,
    ):
        model.model_rebuild(force=True)


def build_response(own: Any, serving: Any, request: Any, answers: list[Any], *args: Any) -> Any:
    """Around the builders of whole answers of completions and chat."""
    response = own(serving, request, answers, *args)
    if not getattr(request, "return_routed_experts", False) or not hasattr(response, "sglext"):
        return response
    added = _added([_said(answer) for answer in answers])
    if added:
        from sglang.srt.entrypoints.openai.protocol import SglExt

        if response.sglext is None:
            response.sglext = SglExt()
        for name, value in added.items():
            setattr(response.sglext, name, value)
    return response


def _added(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What sglext says beyond SGLang's own: notes of the first choice; all choices if there are several."""
    added = {name: choices[0][name] for name in BESIDE if name in choices[0]} if choices else {}
    if len(choices) > 1 and any(choices):
        added[PER_CHOICE] = choices
    return added


async def stream_response(
    own: Any, serving: Any, adapted: Any, request: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Around the streams of completions and chat: their sglext chunk gets the same fields."""
    async with contextlib.aclosing(own(serving, adapted, request, *args, **kwargs)) as chunks:
        async for chunk in chunks:
            if '"sglext":' in chunk:
                yield _extended(chunk, getattr(adapted, _CHOICES, {}))
            else:
                yield chunk


def _extended(chunk: str, choices: dict[int, dict[str, Any]]) -> str:
    added = _added([choices.get(index, {}) for index in range(max(choices, default=-1) + 1)])
    head, data, body = chunk.partition("data: ")
    if not added or not data:
        return chunk
    event = json.loads(body)
    if event.get("sglext"):
        event["sglext"].update(added)
    return f"{head}{data}{json.dumps(event, separators=(',', ':'))}\n\n"
