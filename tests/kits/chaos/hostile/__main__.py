"""Measures in two minutes what hostile requests cost another caller: `python -m tests.kits.chaos.hostile`.

Prints how long its answers take alone, beside ordinary requests, beside hostile ones, and beside ordinary
ones of the size of these; by the clock, and as CPU time of the rank, which load does not forge.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from threading import Event
from typing import TypeVar

import httpx

from cli.stack.default_model import DEFAULT
from tests.kits.chaos.hostile.campaign import Campaign, Twins, ordinary_case
from tests.kits.chaos.hostile.hostile_case import HostileCase
from tests.kits.chaos.hostile.hostile_cases import hostile_case
from tests.kits.chaos.hostile.other_caller import OtherCaller, Took, beside, quantile
from tests.kits.chaos.hostile.servable_cases import servable_case
from tests.kits.e2e.stack import Stack

_Any = TypeVar("_Any")
KEYS = {"hostile": "sk-hostile", "other": "sk-other"}
ENOUGH = 1500  # cases; the time ends a campaign


def main() -> None:
    """Runs the campaigns in turns, on a stack of its own."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=25.0, help="of each campaign")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--first", type=int, default=0, help="number of the first hostile case")
    given = options.parse_args()
    env = {"RYZ_API_KEYS": ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items())}
    stack_options = ("--model", DEFAULT, "--groups", "1", "--tensor-parallel", "1")
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), *stack_options, env=env) as stack:
        stack.await_ready()
        crowd, caller = (_client(stack, tenant) for tenant in ("hostile", "other"))
        other, over = OtherCaller(caller, DEFAULT, stack), Event()
        over.set()
        other.ask(3, over)  # the first ones are slower
        numbers = count(given.first)

        def run(send: Callable[[_Any], object], cases: Iterable[_Any]) -> list[Took]:
            return beside(other, send, cases, time.perf_counter() + given.seconds)

        for _ in range(given.rounds):
            hostile = Campaign(crowd, DEFAULT)
            _show("alone", other.ask(40, over))
            _show("ordinary", run(Campaign(crowd, DEFAULT).send, map(ordinary_case, range(ENOUGH))))
            _show("hostile", run(hostile.send, (_case(next(numbers)) for _ in range(ENOUGH))))
            print(f"  answers: {dict(hostile.seen)}, {len(hostile.problems)} problems")
            twins = Twins(crowd, DEFAULT)
            _show("their size", run(twins.send, enumerate(sorted(hostile.sizes))))
        stack.end()


def _client(stack: Stack, tenant: str) -> httpx.Client:
    return httpx.Client(
        base_url=stack.state.url, headers={"Authorization": f"Bearer {KEYS[tenant]}"}, timeout=120.0
    )


def _case(number: int) -> HostileCase:
    return servable_case(number) if number % 12 == 0 else hostile_case(number)


def _show(name: str, took: list[Took]) -> None:
    shares = (0.5, 0.9, 0.99)
    for unit, times in zip(("clock", "rank"), zip(*took, strict=True), strict=True):
        reported = ", ".join(f"p{share * 100:.0f} {1000 * quantile(times, share):.0f}" for share in shares)
        print(
            f"{name:12}{unit:6} {reported} ms   ({len(took)} answers, load {os.getloadavg()[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
