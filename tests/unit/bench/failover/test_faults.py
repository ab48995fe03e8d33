"""A failover run that ends early tells its counts: the faults so far, the reason, exit code 1."""

import asyncio
import json
import signal
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from benchmarks.failover.fault_injection import inject_faults
from benchmarks.failover.figures import InjectedFault, figures
from benchmarks.failover.fleet import FleetProbe
from benchmarks.failover.streams import Readers
from benchmarks.lib.measuring import BenchError
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import FailoverPlan
from cli.__main__ import app
from cli.bench import failover as bench_failover
from shared import subjects
from shared.codec import encode
from shared.messages import Heartbeat, Load, ModelCard, State, Vitals
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until

REASON = "group g0 did not come back within 30 s; its last heartbeat, 0.0 s ago, said that it is failed"


class FakeFleet:
    """A group of a leader and a rank, real processes; after two kills it does not come back."""

    def __init__(self) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        self.kills = 0

    async def await_streams(self, least: int) -> dict[str, tuple[int, list[int]]]:
        leader, rank = [await asyncio.create_subprocess_exec("sleep", "60") for _ in range(2)]
        self.processes += [leader, rank]
        return {"g0": (leader.pid, [rank.pid])}

    async def await_running(self, group: str, least: int) -> None:
        pass

    async def fetches(self) -> dict[str, tuple[float, float]]:
        return {}

    async def await_away(self, group: str, since: float) -> None:
        ends = [asyncio.create_task(process.wait()) for process in self.processes[-2:]]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self.kills += 1

    async def await_back(self, group: str, since: float) -> None:
        if self.kills > 2:
            raise BenchError(REASON)


async def test_the_faults_until_a_group_stays_away_are_kept() -> None:
    fleet, faults, said = FakeFleet(), list[InjectedFault](), list[str]()
    try:
        plan = FailoverPlan(kills=5, streams=4)
        why = await inject_faults(cast(FleetProbe, fleet), plan, faults, said.append, lambda: "12 streams")
    finally:
        for process in fleet.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    assert why == REASON
    assert len(faults) == 2
    assert [line.split("killed, ")[1] for line in said] == ["1 of 5; 12 streams", "2 of 5; 12 streams"]


@pytest.mark.parametrize(
    ("state", "leader", "is_ready"),
    [
        ("ready", "running", True),
        ("ready", "", True),
        ("starting", "running", False),
        ("ready", "ended", False),
    ],
)
async def test_a_group_whose_leader_has_ended_is_not_ready(
    memory_bus: MemoryBus, state: State, leader: str, is_ready: bool
) -> None:
    """The last heartbeat of a leader that was killed has the state that it had."""
    probe = FleetProbe(memory_bus, memory_bus)  # type: ignore[arg-type]
    await probe.listen()
    beat = Heartbeat(
        group="g0", instance_id="a", seq=1, interval_ms=25, state=state, load=Load(),
        model=ModelCard(name="m", context_length=8), vitals=Vitals(leader=leader),
    )  # fmt: skip
    await memory_bus.publish(subjects.heartbeat("g0"), encode(beat))
    await until(lambda: "g0" in probe.beats)
    assert probe.ready("g0") is is_ready


async def test_a_run_that_is_interrupted_keeps_its_faults_too() -> None:
    class Waiting(FakeFleet):
        async def await_streams(self, least: int) -> dict[str, tuple[int, list[int]]]:
            begun.set()
            await asyncio.sleep(60)
            return {}

    begun, faults = asyncio.Event(), [InjectedFault("rank", "g0", 1.0)]
    fleet = cast(FleetProbe, Waiting())
    run = asyncio.create_task(inject_faults(fleet, FailoverPlan(kills=5), faults, print, str))
    await begun.wait()
    run.cancel()
    assert await run == "it was interrupted"
    assert len(faults) == 1


def report(gave_up: str) -> dict[str, Any]:
    readers = cast(Readers, SimpleNamespace(readings=[], unequal=0, failures=[]))
    return {
        "gave_up": gave_up,
        **figures([InjectedFault("rank", "g0", 1.0)], readers, []),
        "without_faults": {"seconds": 0.0, "streams_moved": 0},
        "client": {},
        "concurrency": 32,
        "tokens": 128,
        "freezes": False,
        "validity": {"valid": 7, "cut": 0, "invalid": []},
    }


@pytest.mark.parametrize(("gave_up", "exit_code"), [(REASON, 1), ("", 0)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_tells_the_counts_and_why_it_gave_up(
    monkeypatch: pytest.MonkeyPatch, gave_up: str, exit_code: int, as_json: bool
) -> None:
    async def measure(*_: object) -> dict[str, Any]:
        return report(gave_up)

    stack = nullcontext(RunningStack("", "demo"))
    monkeypatch.setattr(bench_failover, "own_stack", lambda *_, **__: stack)
    monkeypatch.setattr("benchmarks.failover.failover.measure", measure)
    words = ["bench", "failover", "--kills", "9", *(["--json"] if as_json else [])]
    handler = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, words)
    signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == exit_code, result.output
    ended = f"The measurement ended after 1 of 9 faults: {gave_up}."
    assert str(result.exception) == (ended if gave_up else "None")
    if as_json:
        output = json.loads(result.stdout)
        assert (output["kills"], output["gave_up"]) == (1, gave_up)
    else:
        assert "0 unequal, 0 lost" in result.stdout
        assert "7 answers valid" in result.stdout
