"""Watches by what rules the group of a stack shares, while a phase runs: `/v1/manage/shares`."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.lib.measuring import BenchError
from benchmarks.tenants.fair_bound import GroupRules

EVERY_S = 1.0


@dataclass(slots=True)
class WatchedRules:
    """What was seen.

    Attributes:
        weights: The weight of each party.
        seen: The rules at each look; what a decoded token counts is measured, and so changes.
        waiting: The parties of which requests waited, at each look.
    """

    weights: dict[str, float] = field(default_factory=dict)
    seen: list[GroupRules] = field(default_factory=list)
    waiting: list[frozenset[str]] = field(default_factory=list)

    def of_group(self) -> GroupRules:
        """Return the rules with the median of what a decoded token counted; raise `BenchError` if unknown."""
        if not self.seen:
            raise BenchError("`/v1/manage/shares` listed no group")
        by_cost = sorted(self.seen, key=lambda one: one.decode_tokens)
        return by_cost[len(by_cost) // 2]

    def both_waited(self, parties: Collection[str], begin: float, end: float) -> float:
        """Return at which part of the looks in a part of the time (0 to 1) requests of all parties waited."""
        looks = self.waiting[int(len(self.waiting) * begin) : int(len(self.waiting) * end)]
        return sum(one.issuperset(parties) for one in looks) / max(1, len(looks))


async def watch_rules(
    http: httpx.AsyncClient, key: str, found: WatchedRules, run: Coroutine[Any, Any, None]
) -> None:
    """Run something, and look once a second meanwhile.

    Args:
        http: Calls the gateway, from its machine.
        key: An API key.
        found: Takes what is seen.
        run: What is watched.

    Raises:
        BenchError: A look failed.
    """
    looking = asyncio.create_task(_look(http, key, found))
    try:
        await run
    finally:
        looking.cancel()
        (ended,) = await asyncio.gather(looking, return_exceptions=True)
    if isinstance(ended, Exception):
        raise BenchError(f"shares were not told: {ended}")


async def _look(http: httpx.AsyncClient, key: str, found: WatchedRules) -> None:
    while True:
        answer = await http.get("/v1/manage/shares", headers={"Authorization": f"Bearer {key}"})
        answer.raise_for_status()
        for group in answer.json()["groups"]:
            found.seen.append(GroupRules(group["quantum"], group["decode_tokens"], group["max_running"]))
            found.waiting.append(frozenset(one["party"] for one in group["parties"] if one["waiting"]))
            found.weights.update({one["party"]: one["weight"] for one in group["parties"]})
        await asyncio.sleep(EVERY_S)
