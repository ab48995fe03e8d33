"""Tests of the contract of `HeartbeatCarrier`: on an event loop, and in a process of its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.worker.leader.heartbeats.heartbeats import HeartbeatCarrier
from services.worker.leader.heartbeats.process_carrier import ProcessCarrier
from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.messages import Heartbeat, Load, ModelCard, State
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.loop_carrier import LoopCarrier
from tests.kits.worker.options import heartbeat_process

INTERVAL_S, STALE_S = 0.025, 1.5
GROUP = "carried"
Make = Callable[..., HeartbeatCarrier]


def beat(running: int = 0, state: State = "ready") -> Heartbeat:
    return Heartbeat(
        group=GROUP, instance_id="i", seq=0, interval_ms=25, state=state,
        model=ModelCard(name="demo", context_length=8), load=Load(running=running),
    )  # fmt: skip


class Heard:
    """The heartbeats that a router would hear."""

    def __init__(self) -> None:
        self.beats: list[tuple[float, Heartbeat]] = []

    def on_beat(self, message: Message) -> None:
        self.beats.append((time.monotonic(), codec.decode(message.data, Heartbeat)))

    @property
    def last_of_process(self) -> bool:
        """Whether the last one is not the leader's own."""
        return self.last.vitals is not None and self.last.vitals.leader != ""

    @property
    def last(self) -> Heartbeat:
        return self.beats[-1][1]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def heard(server: NatsServer) -> AsyncIterator[Heard]:
    bus, heard = await NatsBus.connect(server.url, name="router"), Heard()
    await bus.subscribe(subjects.heartbeat(GROUP), heard.on_beat)
    yield heard
    await bus.close()


@pytest.fixture
async def main_bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(server.url, name="worker/i")
    yield bus
    await bus.close()


@pytest.fixture(params=["loop", "process"])
async def make(request: pytest.FixtureRequest, server: NatsServer, main_bus: NatsBus) -> AsyncIterator[Make]:
    """Makes a carrier; each is stopped at the end."""
    made: list[HeartbeatCarrier] = []

    def carrier(interval_s: float = INTERVAL_S, stale_s: float = STALE_S) -> HeartbeatCarrier:
        options = heartbeat_process(
            nats_url=server.url, connection="worker/i/heartbeats", instance_id="i", interval_s=interval_s,
            stale_s=stale_s,
        )  # fmt: skip
        made.append(
            LoopCarrier(main_bus, interval_s, stale_s)
            if request.param == "loop"
            else ProcessCarrier(main_bus, options)
        )
        return made[-1]

    yield carrier
    for one in made:
        await one.stop()


async def described(carrier: HeartbeatCarrier, heartbeat: Heartbeat, seconds: float) -> None:
    """Describes the same state at each interval."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        carrier.describe(heartbeat)
        await asyncio.sleep(INTERVAL_S)


async def until_steady(carrier: HeartbeatCarrier, heard: Heard) -> None:
    """Describes until a process, if there is one, sends the heartbeats."""
    await until(lambda: bool(heard.beats))
    if not isinstance(carrier, ProcessCarrier):
        return
    describing = asyncio.create_task(described(carrier, beat(), 30.0))
    await until(lambda: heard.last_of_process)
    describing.cancel()


@pytest.mark.alone
async def test_the_newest_description_goes_out_at_each_interval(make: Make, heard: Heard) -> None:
    carrier = make()
    await carrier.start(beat(1))
    await until(lambda: len(heard.beats) >= 1)  # no new description is needed for the first
    assert heard.last.load.running == 1
    await until_steady(carrier, heard)
    began, before = time.monotonic(), len(heard.beats)
    await described(carrier, beat(2), 1.0)
    took = time.monotonic() - began
    assert heard.last.load.running == 2
    assert 0.5 * took / INTERVAL_S < len(heard.beats) - before < 1.2 * took / INTERVAL_S + 2
    numbers = [beat.seq for _, beat in heard.beats]
    assert numbers == sorted(set(numbers))


async def test_a_change_is_reported_at_once_and_the_last_word_goes_out(make: Make, heard: Heard) -> None:
    carrier = make(60.0, 120.0)
    states: tuple[State, ...] = ("starting", "ready", "draining")
    await carrier.start(beat(state=states[0]))
    await until(lambda: len(heard.beats) >= 1)
    if isinstance(carrier, ProcessCarrier):
        await until(lambda: heard.last_of_process)  # its first one
    for state in states[1:]:
        before = len(heard.beats)
        carrier.describe(beat(state=state))
        carrier.send_soon()
        await until(lambda before=before: len(heard.beats) > before)  # type: ignore[misc]
        assert heard.last.state == state
    carrier.describe(beat(state="stopped"))
    await carrier.stop()
    await until(lambda: heard.last.state == "stopped")
    sent = len(heard.beats)
    carrier.describe(beat(state="ready"))  # no effect after the stop
    carrier.send_soon()
    await carrier.stop()
    await asyncio.sleep(0.1)
    assert len(heard.beats) == sent


async def test_before_the_start_nothing_is_sent(make: Make, heard: Heard) -> None:
    carrier = make()
    carrier.describe(beat())
    carrier.send_soon()
    await carrier.stop()
    await asyncio.sleep(0.1)
    assert heard.beats == []


async def test_a_loop_that_hangs_stops_them_until_it_goes_on(make: Make, heard: Heard) -> None:
    carrier = make()
    await carrier.start(beat())
    await until_steady(carrier, heard)
    began = time.monotonic()
    carrier.describe(beat())
    await until(lambda: heard.last.vitals is not None and heard.last.vitals.leader == "hung")
    assert time.monotonic() - began > STALE_S - 0.2
    await asyncio.sleep(0.2)
    reported = [beat.vitals.leader for _, beat in heard.beats if beat.vitals is not None]
    assert 1 <= reported.count("hung") <= 2
    assert reported[-1] == "hung"
    before = len(heard.beats)
    await asyncio.sleep(0.3)
    assert len(heard.beats) == before
    await described(carrier, beat(3), 0.5)
    assert heard.last.load.running == 3
    assert heard.last.vitals is not None
    assert heard.last.vitals.leader == "running"


async def test_a_broker_that_is_away_does_not_end_them(make: Make, heard: Heard, server: NatsServer) -> None:
    carrier = make()
    await carrier.start(beat())
    await until_steady(carrier, heard)
    server.stop()
    await described(carrier, beat(), 0.3)
    server.start()
    before = len(heard.beats)
    async with asyncio.timeout(PATIENCE_S):
        while len(heard.beats) < before + 5:
            await described(carrier, beat(4), 0.1)
    assert heard.last.load.running == 4
    assert heard.last.seq > heard.beats[before - 1][1].seq
