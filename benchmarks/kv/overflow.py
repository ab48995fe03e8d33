"""What an overflowed turn costs: time to the first token when KV is warm, is fetched, or is computed again.

Two groups of one stack. A session's first turn runs on the one, and when all of its KV is stored the next
turn runs on either. Every figure has fresh random tokens, so nothing is found that was not put there for it.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.engine.engine_row import quantile
from benchmarks.kv.group_client import GroupClient, Policy

HOME, COLD = "g0", "g1"
NEW_TOKENS = 24  # what a turn adds to its session
WARM_UP = 4
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """session_tokens: of the timed turns, `repeats` of each kind. turns: of mixed lengths, for the rule, each
    of `least` to `most` tokens.
    """

    vocab: int
    session_tokens: int = 2000
    repeats: int = 12
    turns: int = 200
    least: int = 50
    most: int = 4000
    seed: int = 1

    @property
    def num_steps(self) -> int:
        """How often progress is told."""
        return WARM_UP + self.repeats + self.turns


async def measure(client: GroupClient, plan: Plan, progress: Progress) -> dict[str, Any]:
    """The figures, in milliseconds and shares.

    Raises:
        TurnError: a turn failed, or its KV did not get into the store.
    """
    bench = _Bench(client, plan, progress)
    await bench.warm_up()
    return {**await bench.times(), **await bench.rule()}


class _Bench:
    def __init__(self, client: GroupClient, plan: Plan, progress: Progress) -> None:
        self._client = client
        self._plan = plan
        self._progress = progress
        self._random = random.Random(plan.seed)

    async def warm_up(self) -> None:
        """Both groups compute and fetch a little, so that they have rates."""
        for number in range(WARM_UP):
            session = await self._session(200 * 2**number)
            await self._client.turn(COLD, self._next(session), kv="fetch")
            await self._client.turn(COLD, self._tokens(200 * 2**number))
            self._progress("warming up")

    async def times(self) -> dict[str, Any]:
        """Time to first token by where the KV is."""
        kinds: tuple[tuple[str, str, Policy], ...] = (
            ("warm", HOME, "auto"), ("fetch", COLD, "fetch"), ("recompute", COLD, "recompute"),
        )  # fmt: skip
        found: dict[str, list[float]] = {kind: [] for kind, _, _ in kinds}
        wrong = 0
        for _ in range(self._plan.repeats):
            for kind, group, policy in self._random.sample(kinds, len(kinds)):
                session = await self._session(self._plan.session_tokens)
                turn = await self._client.turn(group, self._next(session), kv=policy)
                cached = turn.usage.cached_tokens >= len(session) - 2 * NEW_TOKENS
                wrong += cached == (kind == "recompute") or bool(turn.usage.fetched_tokens) != (
                    kind == "fetch"
                )
                found[kind].append(turn.first_s)
            self._progress("turns that are warm, fetched, recomputed")
        middle = {kind: median(times) for kind, times in found.items()}
        return {
            "ttft_ms": {kind: _ms(value) for kind, value in middle.items()},
            "ttft_p99_ms": {kind: _ms(quantile(sorted(times), 0.99)) for kind, times in found.items()},
            "recompute_over_fetch": round(middle["recompute"] / middle["fetch"], 2),
            "fetch_over_warm": round(middle["fetch"] / middle["warm"], 3),
            "session_tokens": self._plan.session_tokens,
            "not_as_asked": wrong,
        }

    async def rule(self) -> dict[str, Any]:
        """How often the rule takes the way that turns out to be the faster one."""
        plan, right, chosen = self._plan, 0, dict[str, int]()
        fetch_wins = 0
        for _ in range(plan.turns):
            length = round(math.exp(self._random.uniform(math.log(plan.least), math.log(plan.most))))
            times: dict[str, float] = {}
            policies: Sequence[Policy] = ("fetch", "recompute", "auto")
            for policy in self._random.sample(policies, len(policies)):
                session = await self._session(length)
                turn = await self._client.turn(COLD, self._next(session), kv=policy)
                if policy == "auto":
                    choice = "fetch" if turn.usage.fetched_tokens else "recompute"
                else:
                    times[policy] = turn.first_s
            faster = min(times, key=times.__getitem__)
            right += choice == faster
            fetch_wins += faster == "fetch"
            chosen[choice] = chosen.get(choice, 0) + 1
            self._progress("turns of mixed lengths")
        return {
            "rule_right_share": round(right / plan.turns, 4) if plan.turns else None,
            "turns": plan.turns,
            "chosen": chosen,
            "fetch_was_faster_share": round(fetch_wins / plan.turns, 4) if plan.turns else None,
            "turn_tokens": [plan.least, plan.most],
        }

    async def _session(self, length: int) -> list[int]:
        """The tokens of a session whose first turn ran at home, and is stored."""
        prompt = self._tokens(length - 1)
        turn = await self._client.turn(HOME, prompt, tokens=1)
        session = prompt + turn.tokens
        # the KV of the last token is computed with the next turn
        await self._client.stored(session[:-1])
        return session

    def _next(self, session: Sequence[int]) -> list[int]:
        return [*session, *self._tokens(NEW_TOKENS)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(10, self._plan.vocab) for _ in range(count)]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
