"""drive.py own|moetape MODEL OUT NAME...: runs SGLang engines one after another, a JSON file each into OUT.

A program of its own, since SGLang takes the whole process down with a scheduler that dies.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from scenarios import CALLS, ENGINE, SCENARIOS, Call


def answers(engine: Any, call: Call) -> Any:
    """What one call gives: the answers, of a stream the chunks, or the error."""
    try:
        requests = call.arguments()
        if call.stream:
            return [kept(chunk) for request in requests for chunk in engine.generate(**request, stream=True)]
        if len(requests) == 1:
            return [kept(answer) for answer in engine.generate(**requests[0])]
        return [kept(answer) for answer in engine.loop.run_until_complete(gather(engine, requests))]
    except ValueError as error:
        return {"error": str(error)}


async def gather(engine: Any, requests: list[dict[str, Any]]) -> list[Any]:
    return await asyncio.gather(*(engine.async_generate(**request) for request in requests))


def kept(answer: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from run to run."""
    meta_info = answer["meta_info"]
    names = [name for name in meta_info if name.startswith("routed_experts") or name == "finish_reason"]
    names += ["prompt_tokens", "completion_tokens", "cached_tokens", "num_retractions"]
    return {"output_ids": answer["output_ids"], **{name: meta_info.get(name) for name in names}}


def run(name: str, model: str, is_own: bool) -> dict[str, Any]:
    import sglang

    scenario = SCENARIOS[name]
    began = time.perf_counter()
    engine = sglang.Engine(model_path=model, **{**ENGINE, **scenario.engine})
    result: dict[str, Any] = {"start_seconds": time.perf_counter() - began, "calls": []}
    for call_name in scenario.calls:
        call = CALLS[call_name]
        if not (is_own and call.ours):
            result["calls"].append([call_name, answers(engine, call)])
    engine.shutdown()
    return result


def main() -> None:
    mode, model, out, *names = sys.argv[1:]
    for name in names:
        result = run(name, model, mode == "own")
        (Path(out) / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
