"""Ranks and leaders are killed or frozen while streams are read over the bus.

The tests run the measurement of `ryz bench failover`: every stream is complete and equal to its run without a
fault, and every group becomes ready again.
"""

import asyncio
from typing import Any

import pytest

from benchmarks.failover.failover import measure
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import FailoverPlan
from tests.conftest import DEMO
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(300, 3600))
STREAMS = scaled(16, 32)
TOKENS = scaled(64, 128)


def say(text: str) -> None:
    """Prints a line to the test's output."""
    print(text, flush=True)


def num_interrupted(report: dict[str, Any]) -> int:
    """The number of losses of a stream's group, whether it was noticed within the measured time or later."""
    return int(report["interrupted"] + report["uncounted"])


def test_kills_lose_nothing(pair: Stack) -> None:
    plan = FailoverPlan(kills=scaled(2, 100), streams=STREAMS, tokens=TOKENS, seed=3)
    report = asyncio.run(measure(RunningStack("", "demo", nats_urls=pair.state.nats_urls), plan, say))
    record("kills", **report)
    assert (report["gave_up"], report["unequal"], report["lost"]) == ("", 0, 0), report
    assert report["kills"] == plan.kills
    assert num_interrupted(report) > 0
    assert report["streams"] >= STREAMS


def test_kills_while_guesses_are_checked_change_nothing(pair: Stack) -> None:
    """Few streams are guessed, since many use the multipliers already.

    Guesses come many at a time, so streams are long: a short one may end before a kill that comes late.
    """
    plan = FailoverPlan(kills=scaled(2, 100), streams=8, tokens=512, seed=6)
    report = asyncio.run(measure(RunningStack("", "demo", nats_urls=pair.state.nats_urls), plan, say))
    record("kills_while_guessing", **report)
    assert (report["gave_up"], report["unequal"], report["lost"]) == ("", 0, 0), report
    assert num_interrupted(report) > 0
    groups = pair.whole_status()["groups"]
    assert sum(one["speculation"]["accepted_tokens"] for one in groups) > 0


def test_kills_inside_schemas_and_tool_calls_change_nothing(pair: Stack) -> None:
    plan = FailoverPlan(kills=scaled(2, 300), streams=STREAMS, tokens=TOKENS, seed=5, structured=True)
    report = asyncio.run(measure(RunningStack("", "demo", nats_urls=pair.state.nats_urls), plan, say))
    record("kills_in_schemas", **report)
    assert (report["gave_up"], report["unequal"], report["lost"]) == ("", 0, 0), report
    assert report["validity"]["invalid"] == []
    assert report["kills"] == plan.kills
    assert num_interrupted(report) > 0


def test_kills_under_adapters_change_nothing(pair: Stack) -> None:
    """Streams of four adapters and of the base share steps; the group that goes on loads what it lacks."""
    plan = FailoverPlan(kills=scaled(2, 100), streams=STREAMS, tokens=TOKENS, seed=7, adapters=4, model=DEMO)
    report = asyncio.run(measure(RunningStack("", "demo", nats_urls=pair.state.nats_urls), plan, say))
    record("kills_under_adapters", **report)
    assert (report["gave_up"], report["unequal"], report["lost"]) == ("", 0, 0), report
    assert report["kills"] == plan.kills
    assert num_interrupted(report) > 0
    groups = pair.whole_status()["groups"]
    assert max(one["adapters"]["loaded"] for one in groups) == plan.adapters, groups


def test_frozen_leaders_and_ranks_are_passed_by_and_nothing_of_them_comes_through(pair: Stack) -> None:
    """Frames sent after SIGCONT of a leader belong to a superseded attempt, so the client ignores them."""
    plan = FailoverPlan(kills=scaled(2, 30), streams=STREAMS, tokens=128, seed=4, freeze=True)
    report = asyncio.run(measure(RunningStack("", "demo", nats_urls=pair.state.nats_urls), plan, say))
    record("freezes", **report)
    assert (report["gave_up"], report["unequal"], report["lost"]) == ("", 0, 0), report
    assert num_interrupted(report) > 0
    assert min(report["killed"].values()) > 0
    assert report["client"]["ignored"] > 0  # late frames; one that was used would make a stream unequal
