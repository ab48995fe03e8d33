"""Draws many examples of a hypothesis strategy in rounds: hypothesis keeps each run's examples in memory."""

import random
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.kits.chaos.scale import full

T = TypeVar("T")
ROUND = 500


def each_of(strategy: st.SearchStrategy[T], count: int, act: Callable[[T], None]) -> None:
    """Calls `act` with `count` examples, new ones in every full run.

    Those of a short run are the same where the same modules are imported: hypothesis looks for constants in
    their source, so that a whole run has others than a test that runs alone.
    A failing example is not shrunk, because the failure may also depend on all messages sent before.
    """
    first = random.getrandbits(32) if full else 0
    for number in range(first, first + -(-count // ROUND)):

        @seed(number)
        @settings(
            max_examples=min(ROUND, count),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(example: T) -> None:
            act(example)

        run()
