"""Measures the time to the first token of a model that is asleep, beside that of one that is loaded.

The first load finds no packed weights; the others map the file that it has made.
"""

import time
from typing import Any

import httpx

from benchmarks.lib.measuring import BenchError, Progress, milliseconds, percentiles
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import WakingPlan

ASLEEP_S = 60.0


def measure(plan: WakingPlan, stack: RunningStack, progress: Progress) -> dict[str, Any]:
    """Measure the first load, then waking and asking again in turns.

    Raises:
        BenchError: The model does not answer, or does not fall asleep.
    """
    limits = httpx.Limits(max_keepalive_connections=1)
    waking, ready = list[float](), list[float]()
    with httpx.Client(base_url=stack.url, timeout=600, limits=limits) as http:
        progress("the first load, which packs the weights")
        first_s = _first_token_s(http, stack.model, plan.tokens)
        for number in range(plan.rounds):
            progress(f"round {number + 1}")
            asleep = http.post(f"/v1/manage/models/{stack.model}/sleep", params={"wait": ASLEEP_S})
            if asleep.status_code != 200:
                raise BenchError(f"the model does not fall asleep: {asleep.text}")
            waking.append(_first_token_s(http, stack.model, plan.tokens))
            ready.append(_first_token_s(http, stack.model, plan.tokens))
    rows = [_row("asleep", waking), _row("loaded", ready)]
    return {"rows": rows, "first_load_ms": milliseconds(first_s, 0)}


def _row(state: str, times: list[float]) -> dict[str, Any]:
    figures = percentiles(times, "first_token", digits=0)
    return {
        "state": state,
        "requests": len(times),
        **figures,
        "first_token_longest_ms": milliseconds(max(times), 0),
    }


def _first_token_s(http: httpx.Client, model: str, tokens: int) -> float:
    """Seconds until a streamed answer has its first token; the rest of it is read, too."""
    body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    began, first_s = time.perf_counter(), 0.0
    with http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and not first_s:
                first_s = time.perf_counter() - began
    if answer.status_code != 200 or not first_s:
        raise BenchError(f"a request was not answered: status {answer.status_code}; see `ryz logs`")
    return first_s
