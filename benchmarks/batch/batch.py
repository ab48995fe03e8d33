"""Measures what a batch costs interactive requests: rounds with the batch, and rounds while it is paused.

Rounds alternate and come in pairs of equal requests, so that a change of the machine meets both.
"""

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.lib.measuring import BenchError, Progress, percentiles
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import BatchPlan

SETTLE_S = 1.5  # after which what runs of a paused batch has ended, and a resumed one runs
RUNNING_S = 60.0
_LINES = 50_000

WORDS = ("time", "river", "stone", "letter", "garden", "window", "answer", "morning", "paper", "bridge")


@dataclass
class Heard:
    """What came of the requests of some rounds, in seconds.

    Attributes:
        first_s: From a request to its first text.
        between_s: Seconds between pieces of text.
        failed: Requests without a whole answer.
    """

    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Interactive requests of one round, which come at random times, whatever is answered.

    Times and sizes follow from a seed, so that two rounds have the same ones. Each text begins with a word of
    its own, so that no request finds the KV of another one.

    Attributes:
        rate: Requests a second, on average.
        words: Words of each prompt.
        tokens: Tokens of each answer.
    """

    model: str
    rate: float
    words: int
    tokens: int

    async def run(self, http: httpx.AsyncClient, seconds: float, seed: int, heard: Heard) -> None:
        """Send the requests of one round, and wait for their ends."""
        chance = random.Random(seed)
        tasks, begin = [], time.perf_counter()
        due = chance.expovariate(self.rate)
        while due < seconds:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            text = " ".join([os.urandom(4).hex(), *(chance.choice(WORDS) for _ in range(self.words))])
            tasks.append(asyncio.create_task(self._ask(http, text, heard)))
            due += chance.expovariate(self.rate)
        await asyncio.gather(*tasks)
        if not heard.first_s:
            raise BenchError("no interactive request was answered; `ryz status` shows the groups")

    async def _ask(self, http: httpx.AsyncClient, text: str, heard: Heard) -> None:
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": text}],
        }
        began, last, ended = time.perf_counter(), 0.0, False
        try:
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    now = time.perf_counter()
                    ended = ended or line == "data: [DONE]"
                    if '"content":"' not in line.replace(" ", "") or '"content":""' in line.replace(" ", ""):
                        continue
                    if last:
                        heard.between_s.append(now - last)
                    else:
                        heard.first_s.append(now - began)
                    last = now
        except httpx.HTTPError:
            pass
        heard.failed += not ended


async def measure(plan: BatchPlan, stack: RunningStack, progress: Progress) -> dict[str, Any]:
    """Measure all rounds.

    Returns:
        Figures without and with the batch, the ratio of their times to the first token, and the requests a
        second that the batch did meanwhile.

    Raises:
        BenchError: The batch does not run, or has ended before the measurement.
    """
    arrivals = Arrivals(stack.model, plan.rate, plan.words, plan.tokens)
    heard = {"alone": Heard(), "with batch": Heard()}
    limits = httpx.Limits(max_connections=1024, max_keepalive_connections=256)
    done, seconds = 0, 0.0
    async with httpx.AsyncClient(base_url=stack.url, timeout=120, limits=limits) as http:
        progress("the batch begins")
        batch = await _submit(http, plan, stack.model)
        try:
            for pair in range(plan.rounds):
                for mode in ("alone", "with batch") if pair % 2 == 0 else ("with batch", "alone"):
                    progress(f"round {pair + 1}, {mode}")
                    await _set(http, batch, "pause" if mode == "alone" else "resume")
                    await asyncio.sleep(SETTLE_S)
                    before, began = await _done(http, batch), time.perf_counter()
                    await arrivals.run(http, plan.duration, plan.seed + pair, heard[mode])
                    if mode == "with batch":
                        done += await _done(http, batch) - before
                        seconds += time.perf_counter() - began
        finally:
            await _set(http, batch, "cancel")
    if not done:
        raise BenchError("the batch did nothing beside the interactive requests: ask for fewer (--rate)")
    rows = [_row(mode, found) for mode, found in heard.items()]
    ratios = {
        name: round(rows[1][name] / rows[0][name], 3) for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms")
    }
    return {"rows": rows, "ratios": ratios, "batch_requests_per_s": round(done / seconds, 2)}


def _row(mode: str, heard: Heard) -> dict[str, Any]:
    return {
        "interactive": mode,
        "requests": len(heard.first_s),
        "failed": heard.failed,
        **percentiles(heard.first_s, "ttft", digits=2),
        **percentiles(heard.between_s, "itl", digits=2),
    }


async def _submit(http: httpx.AsyncClient, plan: BatchPlan, model: str) -> str:
    """Begin a batch that is longer than the measurement; return its id when it runs."""
    lines = "".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "max_tokens": plan.batch_tokens,
                    "ignore_eos": True,
                    "messages": [{"role": "user", "content": f"Write about the number {number}."}],
                },
            }
        )
        + "\n"
        for number in range(_LINES)
    )
    form = {"file": ("bench.jsonl", lines.encode())}
    stored = await http.post("/v1/files", data={"purpose": "batch"}, files=form)
    wanted = {"input_file_id": stored.json().get("id"), "endpoint": "/v1/chat/completions"}
    made = await http.post("/v1/batches", json=wanted)
    if made.is_error:
        raise BenchError(f"the batch was refused: {made.text}")
    batch = str(made.json()["id"])
    give_up = time.perf_counter() + RUNNING_S
    while not await _done(http, batch):
        if time.perf_counter() > give_up:
            raise BenchError(f"no request of the batch has ended within {RUNNING_S:g} s")
        await asyncio.sleep(0.2)
    return batch


async def _done(http: httpx.AsyncClient, batch: str) -> int:
    found = (await http.get(f"/v1/batches/{batch}")).json()
    if found["status"] not in {"validating", "in_progress"}:
        raise BenchError(f"the batch is {found['status']}: give its answers more tokens (--batch-tokens)")
    return int(found["request_counts"]["completed"])


async def _set(http: httpx.AsyncClient, batch: str, action: str) -> None:
    (await http.post(f"/v1/batches/{batch}/{action}")).raise_for_status()
