"""Measures what an overflowed turn costs: time to first token when KV is warm, fetched, or computed again.

Two groups of one stack. A session's first turn runs on the one; when all of its KV is stored, the next turn
runs on either. Every figure has fresh random tokens, so only KV that was stored for it is found.
"""

import math
import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.kv.group_client import GroupClient, KVPolicy
from benchmarks.lib.measuring import SHARES, Progress, milliseconds, percentile
from benchmarks.stack_plans import OverflowPlan

HOME, COLD = "g0", "g1"
LEAST_TOKENS = 50  # of a turn of mixed length
NEW_TOKENS = 24  # that a turn adds to its session
WARM_UP = 4
_SEED = 1


async def measure(
    client: GroupClient, plan: OverflowPlan, vocab: int, most: int, progress: Progress
) -> dict[str, Any]:
    """Return the figures, in milliseconds and shares.

    Args:
        client: It is connected to both groups.
        vocab: Tokens of the model's vocabulary.
        most: Length of the longest turn of mixed lengths, in tokens.
        progress: Called `num_steps(plan)` times.

    Raises:
        BenchError: A turn failed, or its KV did not get into the store.
    """
    bench = _OverflowBench(client, plan, vocab, progress)
    await bench.warm_up()
    return {**await bench.measure_times(), **await bench.measure_rule(most)}


def num_steps(plan: OverflowPlan) -> int:
    """Return how often `measure` reports progress."""
    return WARM_UP + plan.repeats + plan.turns


class _OverflowBench:
    def __init__(self, client: GroupClient, plan: OverflowPlan, vocab: int, progress: Progress) -> None:
        self._client = client
        self._plan = plan
        self._vocab = vocab
        self._progress = progress
        self._random = random.Random(_SEED)

    async def warm_up(self) -> None:
        """Have both groups compute and fetch a little, so that they have measured rates."""
        for number in range(WARM_UP):
            session = await self._session(200 * 2**number)
            await self._client.send_turn(COLD, self._next(session), kv="fetch")
            await self._client.send_turn(COLD, self._tokens(200 * 2**number))
            self._progress("warming up")

    async def measure_times(self) -> dict[str, Any]:
        """Measure the time to first token by where the KV is."""
        kinds: tuple[tuple[str, str, KVPolicy], ...] = (
            ("warm", HOME, "auto"), ("fetch", COLD, "fetch"), ("recompute", COLD, "recompute"),
        )  # fmt: skip
        found: dict[str, list[float]] = {kind: [] for kind, _, _ in kinds}
        wrong = 0
        for _ in range(self._plan.repeats):
            for kind, group, policy in self._random.sample(kinds, len(kinds)):
                session = await self._session(self._plan.session_tokens)
                turn = await self._client.send_turn(group, self._next(session), kv=policy)
                cached = turn.usage.cached_tokens >= len(session) - 2 * NEW_TOKENS
                wrong += cached == (kind == "recompute") or bool(turn.usage.fetched_tokens) != (
                    kind == "fetch"
                )
                found[kind].append(turn.first_s)
            self._progress("turns that are warm, fetched, recomputed")
        middle = {kind: median(times) for kind, times in found.items()}
        return {
            "ttft_ms": {kind: milliseconds(value, 2) for kind, value in middle.items()},
            **{
                f"ttft_{which}_ms": {
                    kind: milliseconds(percentile(sorted(times), share), 2) for kind, times in found.items()
                }
                for which, share in SHARES.items()
                if which != "p50"
            },
            "recompute_over_fetch": round(middle["recompute"] / middle["fetch"], 2),
            "fetch_over_warm": round(middle["fetch"] / middle["warm"], 3),
            "session_tokens": self._plan.session_tokens,
            "not_as_asked": wrong,
        }

    async def measure_rule(self, most: int) -> dict[str, Any]:
        """Measure how often the rule takes the way that turns out to be the faster one."""
        plan, right, chosen = self._plan, 0, dict[str, int]()
        fetch_wins = 0
        for _ in range(plan.turns):
            length = round(math.exp(self._random.uniform(math.log(LEAST_TOKENS), math.log(most))))
            times: dict[str, float] = {}
            policies: Sequence[KVPolicy] = ("fetch", "recompute", "auto")
            for policy in self._random.sample(policies, len(policies)):
                session = await self._session(length)
                turn = await self._client.send_turn(COLD, self._next(session), kv=policy)
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
            "turn_tokens": [LEAST_TOKENS, most],
        }

    async def _session(self, length: int) -> list[int]:
        """Return the tokens of a session whose first turn ran at home and is stored."""
        prompt = self._tokens(length - 1)
        turn = await self._client.send_turn(HOME, prompt, tokens=1)
        session = prompt + turn.tokens
        # the KV of the last token is computed with the next turn
        await self._client.await_stored(session[:-1])
        return session

    def _next(self, session: Sequence[int]) -> list[int]:
        return [*session, *self._tokens(NEW_TOKENS)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(10, self._vocab) for _ in range(count)]
