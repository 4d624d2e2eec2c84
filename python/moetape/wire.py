"""What engines and trainers send: whole answers, and rows that come in parts.

    for choice in moetape.wire.read_answer(body, spec=spec, hop="vllm-0"):
        choice.routes                                   # None where the answer has none (asked=False)

    routes = moetape.wire.splice(prefill, decoded, prompt_tokens)
    moetape.wire.align(routes, num_tokens)              # Alignment(expected, found, missing, surplus)

`moetape.encode` and `moetape.decode` speak the forms themselves; DIALECTS names them.
"""

from moetape._moetape import (
    DIALECTS,
    Alignment,
    Choice,
    RouteStream,
    Sniffed,
    align,
    fit,
    pack,
    read_answer,
    resume,
    sniff,
    splice,
)

__all__ = [
    "DIALECTS",
    "Alignment",
    "Choice",
    "RouteStream",
    "Sniffed",
    "align",
    "fit",
    "pack",
    "read_answer",
    "resume",
    "sniff",
    "splice",
]
