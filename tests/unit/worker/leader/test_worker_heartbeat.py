"""Heartbeats continue while the event loop is busy, stop when it hangs, and end with the state `stopped`."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from services.worker.leader.fleet.heartbeat import Heartbeats, HeartbeatSender, LoopCarrier, ThreadCarrier
from shared import codec
from shared.bus.api import Bus
from shared.bus.memory import MemoryBus
from shared.errors import (
    Unavailable,
)
from shared.messages import Heartbeat, Load, ModelCard, State

INTERVAL_S = 0.025
STALE_S = 1.5


class Recorder(MemoryBus):
    """A bus that records the published heartbeats and the publishing threads."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[float, Heartbeat]] = []
        self.threads: set[int] = set()

    async def publish(self, subject: str, data: bytes, **_: object) -> None:
        self.threads.add(threading.get_ident())
        self.beats.append((time.monotonic(), codec.decode(data, Heartbeat)))

    def during(self, began: float, ended: float) -> list[Heartbeat]:
        return [beat for at, beat in self.beats if began <= at <= ended]


class Group:
    """The group that the heartbeats describe."""

    def __init__(self) -> None:
        self.state: State = "starting"
        self.described = 0

    def describe(self) -> Heartbeat:
        self.described += 1
        return Heartbeat(
            group="g0", instance_id="i", seq=0, interval_ms=25, state=self.state,
            model=ModelCard(name="demo", context_length=8), load=Load(running=self.described),
        )  # fmt: skip


@pytest.fixture
def group() -> Group:
    return Group()


@pytest_asyncio.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest_asyncio.fixture
async def threaded(group: Group, recorder: Recorder) -> AsyncIterator[Heartbeats]:
    async def connect(stack: AsyncExitStack) -> Bus:
        return recorder

    heartbeats = Heartbeats(ThreadCarrier(connect), INTERVAL_S, STALE_S, group.describe)
    await heartbeats.start()
    describing = asyncio.create_task(heartbeats.describe_forever())
    yield heartbeats
    describing.cancel()
    await heartbeats.stop()


def block_loop(seconds: float) -> tuple[float, float]:
    """Blocks the event loop; returns the begin and end on the monotonic clock, in seconds."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:  # Python code, which holds the GIL
        sum(range(1000))
    return began, time.monotonic()


async def test_a_busy_loop_does_not_delay_them(threaded: Heartbeats, recorder: Recorder) -> None:
    await asyncio.sleep(0.1)
    began, ended = block_loop(0.5)
    beats = recorder.during(began, ended)
    assert len(beats) >= 3  # 20 on an idle machine; beats of the blocked loop would be none
    assert len({beat.load.running for beat in beats}) <= 2  # the blocked loop made no new description
    assert threading.get_ident() not in recorder.threads


async def test_a_loop_that_hangs_stops_them_until_it_goes_on(
    threaded: Heartbeats, recorder: Recorder
) -> None:
    await asyncio.sleep(0.1)
    began, ended = block_loop(STALE_S + 1.0)
    assert recorder.during(began, began + STALE_S)
    assert recorder.during(began + STALE_S + 0.3, ended) == []
    last = recorder.beats[-1][1].seq
    async with asyncio.timeout(5):
        while recorder.beats[-1][1].seq < last + 3:  # noqa: ASYNC110 (another thread has no event)
            await asyncio.sleep(0.01)
    numbers = [beat.seq for _, beat in recorder.beats]
    assert numbers == list(range(len(numbers)))


async def test_a_change_is_told_at_once_and_the_last_word_goes_out(group: Group, recorder: Recorder) -> None:
    async def connect(stack: AsyncExitStack) -> Bus:
        return recorder

    heartbeats = Heartbeats(ThreadCarrier(connect), 60.0, 120.0, group.describe)
    await heartbeats.start()
    changes: tuple[State, ...] = ("starting", "ready", "draining")
    for number, state in enumerate(changes):
        group.state = state
        if number:
            await heartbeats.beat()
        async with asyncio.timeout(5):
            while len(recorder.beats) <= number:  # noqa: ASYNC110 (another thread has no event)
                await asyncio.sleep(0.005)
    group.state = "stopped"
    await heartbeats.stop()
    assert [beat.state for _, beat in recorder.beats] == ["starting", "ready", "draining", "stopped"]
    await heartbeats.beat()  # no effect after the stop
    await heartbeats.stop()
    assert len(recorder.beats) == 4


async def test_no_broker_is_an_error_of_the_start(group: Group) -> None:
    async def connect(stack: AsyncExitStack) -> Bus:
        raise Unavailable("no NATS server answered", reason="broker_unavailable")

    heartbeats = Heartbeats(ThreadCarrier(connect), INTERVAL_S, STALE_S, group.describe)
    with pytest.raises(Unavailable, match="no NATS server"):
        await heartbeats.start()
    await heartbeats.stop()


async def test_a_broker_that_is_away_does_not_stop_them(group: Group, memory_bus: MemoryBus) -> None:
    heartbeats = Heartbeats(LoopCarrier(memory_bus), 0.005, STALE_S, group.describe)
    memory_bus.broker.stop()
    await heartbeats.start()
    await asyncio.sleep(0.05)
    memory_bus.broker.start()
    await heartbeats.beat()
    await asyncio.sleep(0.05)
    sent = memory_bus.stats.published
    assert sent >= 2
    await heartbeats.stop()
    assert memory_bus.stats.published > sent


async def test_beats_between_do_not_stretch_the_interval(group: Group, recorder: Recorder) -> None:
    pulse, began = HeartbeatSender(0.1, 10.0), time.monotonic()
    pulse.tell(group.describe())
    running = asyncio.create_task(pulse.run(recorder))
    for _ in range(8):
        await asyncio.sleep(0.06)
        pulse.wake()
    elapsed = time.monotonic() - began
    pulse.end()
    await running
    gaps = [
        after - before for (before, _), (after, _) in zip(recorder.beats, recorder.beats[1:], strict=False)
    ]
    assert len(recorder.beats) >= 8
    assert max(gaps) < 0.15 + elapsed / 4


async def test_long_descriptions_are_made_more_rarely(recorder: Recorder) -> None:
    group = Group()

    def describe() -> Heartbeat:
        time.sleep(0.004)
        return group.describe()

    heartbeats = Heartbeats(LoopCarrier(recorder), 0.005, 10.0, describe)
    await heartbeats.start()
    describing = asyncio.create_task(heartbeats.describe_forever())
    await asyncio.sleep(0.5)
    describing.cancel()
    await heartbeats.stop()
    assert group.described <= 6
    assert len(recorder.beats) > group.described
