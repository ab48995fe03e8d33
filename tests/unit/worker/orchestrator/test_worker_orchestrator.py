"""The state machine of a group: only transitions in its table occur, and the docs have the same table."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.orchestrator.failure_recovery_manager import RULES, FailureRecoveryManager, RestartPauses
from services.worker.orchestrator.multi_gpu_orchestrator import TRANSITIONS, Event, MultiGPUOrchestrator
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused, Failure, engine_error
from shared.messages import State

DOC = Path(__file__).resolve().parents[4] / "docs" / "orchestrator.md"
STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[Event, ...] = get_args(Event)


class FakeEngine:
    """An engine that starts, or fails as the test sets it."""

    def __init__(self) -> None:
        self.error: EngineFailed | None = None
        self.starts = self.stops = 0

    async def start(self) -> EngineInfo:
        self.starts += 1
        if self.error is not None:
            raise self.error
        return EngineInfo(num_blocks=1, vocab_size=1, context_length=1, fingerprint="f")

    async def stop(self) -> None:
        self.stops += 1


def group(**limits: Any) -> tuple[MultiGPUOrchestrator, FakeEngine]:
    engine = FakeEngine()
    recovery = FailureRecoveryManager(RestartPauses(**({"first_s": 0.0} | limits)), lambda: 0.5)
    return MultiGPUOrchestrator(engine, recovery, lambda: 0.0), engine  # type: ignore[arg-type]


def test_all_states_stand_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(STATES)
    reached = {"starting"} | {state for row in TRANSITIONS.values() for state in row.values()}
    assert reached == set(STATES)
    for state, row in TRANSITIONS.items():
        assert row["stop"] == "stopped", f"a group that is {state} can be ended"
        assert set(row) <= set(EVENTS)


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    table: dict[str, dict[str, str]] = {}
    lines = DOC.read_text(encoding="utf-8").split("## States", 1)[1].splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    header = rows[0][1:]
    for state, *cells in rows[2 : 2 + len(STATES)]:
        table[state] = {event: after for event, after in zip(header, cells, strict=True) if after}
    assert table == {state: dict(row) for state, row in TRANSITIONS.items()}


def test_each_kind_of_failure_stands_in_the_docs() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", DOC.read_text(encoding="utf-8").split("## Failures", 1)[1]))
    assert set(RULES) <= documented


def test_the_tests_that_the_docs_name_are_there() -> None:
    named = set(re.findall(r"`(test_[a-z_]+)`", DOC.read_text(encoding="utf-8")))
    there = {path.stem for path in Path(__file__).resolve().parents[3].rglob("test_*.py")}
    assert named
    assert named <= there


async def test_a_group_that_fails_comes_back() -> None:
    one, engine = group()
    await one.start()
    assert (one.state, one.is_up) == ("ready", True)
    one.lost(EngineFailed("rank 1 died", "rank_died", 1))
    assert (one.state, one.is_up, one.failure) == ("recovering", False, "rank 1 died")
    await one.restart_due()
    assert engine.stops == 1
    await one.start()
    assert (one.state, one.is_up, one.failure) == ("ready", True, "")


async def test_a_group_that_fails_again_and_again_says_so_and_goes_on_trying() -> None:
    one, engine = group(give_up_after=2, given_up_s=0.0)
    await one.start()
    engine.error = EngineFailed("no memory", "memory")
    states = []
    for _ in range(4):
        one.lost(EngineFailed("rank 1 died"))
        states.append(one.state)
        await one.restart_due()
        with pytest.raises(EngineFailed):
            await one.start()
    assert states == ["recovering", "recovering", "failed", "failed"]
    engine.error = None
    await one.start()
    assert one.state == "ready"


async def test_ranks_that_are_killed_again_and_again_from_outside_come_back_each_time() -> None:
    one, _ = group(give_up_after=2, given_up_s=3600.0)
    killed = Failure("rank_died", "rank 0 is gone: killed by SIGKILL", 0, step_ids=(7,), outside=True)
    for _ in range(6):
        await one.start()
        one.lost(engine_error(killed))
        assert one.state == "recovering"
        await one.restart_due()


async def test_what_cannot_succeed_is_said_at_once() -> None:
    one, _ = group()
    await one.start()
    one.lost(EngineRefused("the model's file is gone"))
    assert one.state == "failed"


async def test_what_ranks_are_forked_from_is_ended_as_well_when_the_rule_says_so() -> None:
    one, engine = group()
    await one.start()
    one.lost(EngineFailed("did not load", "start_failed"))
    await one.restart_due()
    assert engine.stops == 2


async def test_an_engine_that_fails_while_its_group_drains_is_left_alone() -> None:
    one, engine = group()
    await one.start()
    one.drain()
    one.lost(EngineFailed("rank 1 died"))
    assert one.state == "draining"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.restart_due(), 0.05)
    assert (engine.starts, engine.stops) == (1, 1)
    one.stop()
    assert str(one.state) == "stopped"


async def test_what_stands_in_no_table_is_a_bug_that_shows() -> None:
    one, _ = group()
    one.stop()
    with pytest.raises(RuntimeError, match="a group that is stopped got 'up'"):
        await one.start()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["up", "lost", "refused", "drain"]), max_size=40))
def test_no_order_of_events_leads_out_of_the_table(events: list[str]) -> None:
    one, _ = group()
    happen: dict[str, Callable[[], object]] = {
        "up": lambda: asyncio.run(one.start()),
        "lost": lambda: one.lost(EngineFailed("why")),
        "refused": lambda: one.lost(EngineRefused("why")),
        "drain": one.drain,
    }
    drained = False
    for event in events:
        if event == "up" and one.is_up:
            continue
        drained |= event == "drain"
        happen[event]()
        assert (one.state == "draining") == drained
        assert one.is_up == (event == "up" or (event == "drain" and one.is_up))
        if one.state == "ready":
            assert one.is_up
    one.stop()
    assert one.state == "stopped"
