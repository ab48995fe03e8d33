"""Measures loads of adapters into a running stack: the call that registers one, and the token that waits.

Adapters are asked for in turn, more of them than the group has memory for, so that each one has left it when
its turn comes again. It is then asked twice, with prompts of one length: the second time it is there, and the
difference is the load as a caller sees it.
"""

import time
from typing import Any

import httpx

from benchmarks.adapters.pool_load import first_token_s
from benchmarks.lib.measuring import Progress, milliseconds, percentiles
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import AdapterPoolPlan
from shared.client import AdaptersClient
from shared.messages import Adapter


async def measure_loads(
    plan: AdapterPoolPlan,
    stack: RunningStack,
    client: AdaptersClient,
    adapters: list[Adapter],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return a row for the call, for first tokens without and with the adapter, and for their difference.

    Args:
        adapters: Registered ones, more than there is memory for.
    """
    spent: dict[str, list[float]] = {"register": [], "first token, absent": [], "first token, there": []}
    async with httpx.AsyncClient(base_url=stack.url, timeout=600) as http:
        for number in range(-len(adapters), plan.loads):  # those before 0 warm up
            if number % len(adapters) == 0:
                progress(f"load {number} of {plan.loads}")
            adapter = adapters[number % len(adapters)]
            began = time.perf_counter()
            await client.load_adapter(adapter.base, adapter.name, adapter.source, replace=True)
            times = [time.perf_counter() - began]
            times += [
                await first_token_s(http, adapter.model, f"Number {number + 1000}{again}. The weather", 1)
                for again in range(2)
            ]
            if number >= 0:
                for found, seconds in zip(spent.values(), times, strict=True):
                    found.append(seconds)
    spent["added by the load"] = [
        absent - there
        for absent, there in zip(spent["first token, absent"], spent["first token, there"], strict=True)
    ]
    return [_row(what, sorted(seconds)) for what, seconds in spent.items()]


def _row(what: str, ordered: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        **percentiles(ordered, "", digits=1),
        "longest_ms": milliseconds(ordered[-1], 1),
    }
