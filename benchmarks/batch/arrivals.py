"""Interactive requests that come at random times, whatever is answered: their times to the first token.

The times and sizes follow from a seed, so that two rounds have the same ones; each text begins with a word of
its own, so that no request finds the KV of another one.
"""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.lib.measuring import BenchError

WORDS = ("time", "river", "stone", "letter", "garden", "window", "answer", "morning", "paper", "bridge")


@dataclass
class Heard:
    """What came of the requests of some rounds, in seconds.

    Attributes:
        first_s: From a request to its first text.
        between_s: Between pieces of text.
        failed: Requests without a whole answer.
    """

    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of one round.

    Attributes:
        model: The model to ask.
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
