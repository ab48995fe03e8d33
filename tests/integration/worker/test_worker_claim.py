"""One leader per group name, with real processes: which may start, and how soon a successor serves."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.worker.leader.fleet.name_claim import NameClaim
from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.messages import GroupDown, Heartbeat
from tests.kits.programs.launch import AsyncProgram, async_program
from tests.kits.servers import GuardedNats
from tests.kits.waiting import until

ROOT = Path(__file__).parents[3]
START_S = 30.0
Starter = Callable[..., Awaitable[AsyncProgram]]


class Heard:
    """Records the states in each instance's heartbeats, and the instances reported down."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.downs: list[str] = []

    async def on_heartbeat(self, message: Message) -> None:
        heartbeat = codec.decode(message.data, Heartbeat)
        self.states[heartbeat.instance_id] = heartbeat.state

    async def on_down(self, message: Message) -> None:
        self.downs.append(codec.decode(message.data, GroupDown).instance_id)

    async def until_ready(self, instance_id: str) -> None:
        await until(lambda: self.states.get(instance_id) == "ready", START_S)


@pytest.fixture(params=["open", "with accounts"])
async def url(request: pytest.FixtureRequest, nats_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a broker; with accounts, the URLs for leader and router, joined by `|`."""
    if request.param == "open":
        yield nats_url
        return
    guarded = GuardedNats(tmp_path)
    guarded.start()
    yield guarded.url("worker") + "|" + guarded.url("router")
    guarded.stop()


@asynccontextmanager
async def listening(url: str, group: str) -> AsyncIterator[Heard]:
    bus = await NatsBus.connect(url.rpartition("|")[2], name="test")
    heard = Heard()
    await bus.subscribe(subjects.heartbeat(group), heard.on_heartbeat)
    await bus.subscribe(subjects.GROUP_DOWN, heard.on_down)
    try:
        yield heard
    finally:
        await bus.close()


@pytest.fixture
async def start() -> AsyncIterator[Starter]:
    """Starts leaders with the null engine; kills all of them at the end."""

    async def leader(url: str, group: str, instance_id: str) -> AsyncProgram:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
        env |= {
            "RYZ_NATS_URL": url.partition("|")[0], "RYZ_GROUP": group, "RYZ_INSTANCE_ID": instance_id,
            "RYZ_ENGINE": "null", "RYZ_ADMIN_PORT": "0", "RYZ_HEARTBEAT_INTERVAL_MS": "20",
        }  # fmt: skip
        return await running.enter_async_context(async_program("services.worker", env=env))

    async with AsyncExitStack() as running:
        yield leader


async def said(process: AsyncProgram) -> tuple[int, str]:
    """The exit code and the last log line of a process that ends by itself."""
    async with asyncio.timeout(START_S):
        log = (await process.stderr.read()).decode()
        return await process.wait(), next(
            line for line in reversed(log.splitlines()) if line.startswith("worker cannot start")
        )


async def test_a_leader_refuses_to_start_beside_a_living_one_of_its_name(url: str, start: Starter) -> None:
    async with listening(url, "c0") as heard:
        await start(url, "c0", "first")
        await heard.until_ready("first")
        code, words = await said(await start(url, "c0", "second"))
        assert code == 2
        for part in ("group c0 has a leader already: instance first on host ", "ryz up --stack", "RYZ_GROUP"):
            assert part in words
        # routers saw nothing of the second leader
        assert heard.states == {"first": "ready"}
        assert heard.downs == []


async def test_a_successor_of_a_killed_leader_is_not_held_up(nats_url: str, start: Starter) -> None:
    async with listening(nats_url, "c1") as heard:
        first = await start(nats_url, "c1", "first")
        await heard.until_ready("first")
        first.kill()
        began = time.monotonic()
        await start(nats_url, "c1", "second")
        await heard.until_ready("second")
        alone_s = time.monotonic() - began
        assert alone_s < START_S / 2


async def test_a_frozen_leader_does_not_count_as_living(nats_url: str, start: Starter) -> None:
    async with listening(nats_url, "c2") as heard:
        first = await start(nats_url, "c2", "first")
        await heard.until_ready("first")
        first.send_signal(signal.SIGSTOP)
        await start(nats_url, "c2", "second")
        await heard.until_ready("second")


async def test_a_successor_waits_for_one_that_drains(nats_url: str, start: Starter) -> None:
    async with listening(nats_url, "c3") as heard:
        first = await start(nats_url, "c3", "first")
        await heard.until_ready("first")
        first.terminate()
        await start(nats_url, "c3", "second")
        await heard.until_ready("second")
        assert await first.wait() == 0


async def test_of_two_that_start_at_the_same_moment_exactly_one_serves(nats_url: str, start: Starter) -> None:
    async with listening(nats_url, "c4") as heard:
        both = await asyncio.gather(start(nats_url, "c4", "a"), start(nats_url, "c4", "b"))
        async with asyncio.timeout(START_S):
            ended, _ = await asyncio.wait(
                [asyncio.create_task(process.wait()) for process in both],
                return_when=asyncio.FIRST_COMPLETED,
            )
        assert [task.result() for task in ended] == [2]
        (living,) = [name for name, process in zip("ab", both, strict=True) if process.returncode is None]
        await heard.until_ready(living)
        assert set(heard.states) == {living}


async def test_the_broker_knows_whether_a_name_is_free(nats_url: str) -> None:
    bus = await NatsBus.connect(nats_url, name="claims")
    try:
        first, second = (NameClaim("cl-free", one, bus=bus, state=lambda: "ready") for one in ("a", "b"))
        assert await first.is_free()
        await first.take()
        assert not await second.is_free()
        await first.release()
        assert await second.is_free()
    finally:
        await bus.close()
