"""Measures first tokens of more adapters than a group has memory for, beside as many as it has.

Clients ask one request after the other, each for an adapter drawn at random; the rounds of each number of
adapters take turns. Prompts differ, so that nothing but the adapters is found in memory.
"""

import asyncio
import random
import time
from typing import Any

import httpx

from benchmarks.lib.measuring import BenchError, Progress, milliseconds, percentiles
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import AdapterPoolPlan


async def measure(
    plan: AdapterPoolPlan, stack: RunningStack, models: list[str], progress: Progress
) -> dict[str, Any]:
    """Return a row for each number of adapters.

    Args:
        models: What to ask for, as many as the largest number.

    Raises:
        BenchError: A request was not answered.
    """
    firsts: dict[int, list[float]] = {count: [] for count in plan.adapters}
    spent = dict.fromkeys(plan.adapters, 0.0)
    limits = httpx.Limits(max_connections=plan.concurrency)
    async with httpx.AsyncClient(base_url=stack.url, timeout=600, limits=limits) as http:
        for number in range(plan.rounds + 1):
            for count in plan.adapters:
                progress(f"round {number} of {plan.rounds}, {count} adapters" if number else "warming up")
                # what the round before has left in memory is not this one's doing
                for model in models[: min(count, plan.slots)]:
                    await first_token_s(http, model, "Hello", 1)
                began = time.perf_counter()
                times = await _round(http, plan, models[:count], seed=f"{number} {count}")
                if number:
                    spent[count] += time.perf_counter() - began
                    firsts[count] += times
    rows = [_row(plan, count, sorted(firsts[count]), spent[count]) for count in plan.adapters]
    for row in rows:
        row["p99_to_first_row"] = round(row["first_token_p99_ms"] / rows[0]["first_token_p99_ms"], 2)
    return {"rows": rows, "slots": plan.slots}


async def _round(http: httpx.AsyncClient, plan: AdapterPoolPlan, models: list[str], seed: str) -> list[float]:
    """Seconds until the first token of each request of a round."""
    rng = random.Random(seed)
    asked = [(rng.choice(models), f"Number {rng.random()}. The weather") for _ in range(plan.requests)]
    times: list[float] = []

    async def client() -> None:
        while asked:
            model, prompt = asked.pop()
            times.append(await first_token_s(http, model, prompt, plan.tokens))

    await asyncio.gather(*(client() for _ in range(plan.concurrency)))
    return times


async def first_token_s(http: httpx.AsyncClient, model: str, prompt: str, tokens: int) -> float:
    """Seconds until a streamed answer has its first token; the rest of it is read, too."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    began, first_s = time.perf_counter(), 0.0
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and not first_s:
                first_s = time.perf_counter() - began
    if answer.status_code != 200 or not first_s:
        raise BenchError(f"a request for {model} was not answered: status {answer.status_code}")
    return first_s


def _row(plan: AdapterPoolPlan, count: int, ordered: list[float], spent_s: float) -> dict[str, Any]:
    return {
        "adapters": count,
        "requests": len(ordered),
        **percentiles(ordered, "first_token", digits=0),
        "first_token_longest_ms": milliseconds(ordered[-1], 0),
        "tokens_per_s": round(plan.tokens * len(ordered) / spent_s, 1),
    }
