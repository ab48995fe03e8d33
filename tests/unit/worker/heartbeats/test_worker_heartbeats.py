"""Descriptions of the group, and the intervals at which they are sent."""

import asyncio
import time

import pytest
import pytest_asyncio

from services.worker.leader.heartbeats.heartbeats import Heartbeats
from services.worker.leader.heartbeats.sender import HeartbeatSender
from shared import codec
from shared.messages import Heartbeat, Load, ModelCard, State
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.loop_carrier import DescriptionAge, LoopCarrier

STALE_S = 1.5


class Recorder(MemoryBus):
    """A bus that records the published heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[float, Heartbeat]] = []

    async def publish(self, subject: str, data: bytes, **_: object) -> None:
        self.beats.append((time.monotonic(), codec.decode(data, Heartbeat)))


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


async def test_a_broker_that_is_away_does_not_stop_them(group: Group, memory_bus: MemoryBus) -> None:
    heartbeats = Heartbeats(LoopCarrier(memory_bus, 0.005, STALE_S), 0.005, STALE_S, group.describe)
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


@pytest.mark.alone
async def test_beats_between_do_not_stretch_the_interval(group: Group, recorder: Recorder) -> None:
    began = time.monotonic()
    description = group.describe(), began
    sender = HeartbeatSender(0.1, lambda: description, DescriptionAge(60.0))
    running = asyncio.create_task(sender.run(recorder))
    for _ in range(8):
        await asyncio.sleep(0.06)
        sender.wake()
    elapsed = time.monotonic() - began
    sender.end()
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

    heartbeats = Heartbeats(LoopCarrier(recorder, 0.005, 10.0), 0.005, 10.0, describe)
    await heartbeats.start()
    describing = asyncio.create_task(heartbeats.describe_forever())
    await asyncio.sleep(0.5)
    describing.cancel()
    await heartbeats.stop()
    assert group.described <= 6
    assert len(recorder.beats) > group.described
