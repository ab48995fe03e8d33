"""The worker as a process: `python -m services.worker` on a real broker."""

import asyncio
import signal
from collections.abc import Callable

import psutil
import pytest

from shared import codec, subjects
from shared.bus.api import Message
from shared.bus.nats import NatsBus
from shared.messages import (
    AnyFrame,
    Done,
    DrainGroup,
    Draining,
    Failed,
    FrameBatch,
    Heartbeat,
    Route,
    ServiceStatus,
    StatusQuery,
    Work,
)
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import chat, text_of
from tests.kits.worker.process import worker


async def test_a_worker_serves_tells_its_status_and_drains(nats_url: str, nats_bus: NatsBus) -> None:
    frames: list[AnyFrame] = []
    ended, states = asyncio.Event(), []

    async def on_frames(message: Message) -> None:
        frames.extend(codec.decode(message.data, FrameBatch).frames)
        if isinstance(frames[-1], Done | Failed):
            ended.set()

    async def on_heartbeat(message: Message) -> None:
        states.append(codec.decode(message.data, Heartbeat).state)
        ready.set()

    ready = asyncio.Event()
    inbox = nats_bus.new_inbox() + ".f"
    await nats_bus.subscribe(inbox, on_frames)
    async with worker(nats_url, "wp0", NULL_STEP_DELAY_MS="5", HEARTBEAT_INTERVAL_MS="20") as process:
        await nats_bus.subscribe(subjects.heartbeat("wp0"), on_heartbeat)
        async with asyncio.timeout(PATIENCE_S):
            while "ready" not in states:
                ready.clear()
                await ready.wait()
        request = chat("r", sampling={"max_tokens": 40})
        work = Work(request=codec.encode(request), route=Route(group="wp0", reason=""), reply_to=inbox)
        await nats_bus.publish(subjects.work("wp0"), codec.encode(work))
        answer = await nats_bus.request(subjects.STATUS, codec.encode(StatusQuery()), timeout_s=PATIENCE_S)
        status = codec.decode_reply(answer.data, ServiceStatus)
        assert (status.service, status.detail["group"], status.pid) == ("worker", "wp0", process.pid)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
            assert process.stderr is not None
            log = (await process.stderr.read()).decode()
            assert await process.wait() == 0
    assert isinstance(frames[-1], Done)
    assert len(text_of(frames)) == 40
    assert {"draining", "stopped"} <= set(states)
    assert '"level": "error"' not in log


async def test_the_process_beside_a_killed_leader_says_so(nats_url: str, nats_bus: NatsBus) -> None:
    said: list[str] = []

    async def on_heartbeat(message: Message) -> None:
        vitals = codec.decode(message.data, Heartbeat).vitals
        said.append(vitals.leader if vitals else "")

    await nats_bus.subscribe(subjects.heartbeat("wp3"), on_heartbeat)
    async with worker(nats_url, "wp3") as process:
        await until(lambda: "running" in said)
        children = psutil.Process(process.pid).children()
        (sender,) = [child for child in children if "heartbeats.process" in " ".join(child.cmdline())]
        sender.suspend()
        process.kill()
        await process.wait()
        sender.resume()  # it outlives its leader for as long as it takes to say so
        await until(lambda: said[-1] == "ended")


async def test_a_drain_asked_for_moves_what_runs_and_ends_the_process(
    nats_url: str, nats_bus: NatsBus
) -> None:
    frames: list[AnyFrame] = []
    states: list[str] = []
    changed = asyncio.Event()

    async def on_frames(message: Message) -> None:
        frames.extend(codec.decode(message.data, FrameBatch).frames)
        changed.set()

    async def on_heartbeat(message: Message) -> None:
        states.append(codec.decode(message.data, Heartbeat).state)
        changed.set()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                changed.clear()
                await changed.wait()

    inbox = nats_bus.new_inbox() + ".f"
    await nats_bus.subscribe(inbox, on_frames)
    await nats_bus.subscribe(subjects.heartbeat("wp2"), on_heartbeat)
    async with worker(nats_url, "wp2", NULL_STEP_DELAY_MS="5", DRAIN_TIMEOUT_S="600") as process:
        await until(lambda: "ready" in states)
        request = chat("r", sampling={"max_tokens": 4000})
        work = Work(request=codec.encode(request), route=Route(group="wp2", reason=""), reply_to=inbox)
        await nats_bus.publish(subjects.work("wp2"), codec.encode(work))
        await until(lambda: len(frames) > 5)
        asked = codec.encode(DrainGroup(timeout_ms=200))
        answer = await nats_bus.request(subjects.drain("wp2"), asked, timeout_s=PATIENCE_S)
        draining = codec.decode_reply(answer.data, Draining)
        assert (draining.group, draining.requests) == ("wp2", 1)
        async with asyncio.timeout(PATIENCE_S):
            assert process.stderr is not None
            log = (await process.stderr.read()).decode()
            assert await process.wait() == 0
        await until(lambda: isinstance(frames[-1], Failed))
    last = frames[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.data["reason"], last.resumable) == ("group_lost", "draining", True)
    assert [frame.seq for frame in frames] == list(range(len(frames)))
    assert states[-1] == "stopped"
    assert '"level": "error"' not in log


@pytest.mark.parametrize(
    ("settings", "code", "complaint"),
    [
        ({"ENGINE": "torch"}, 2, "RYZ_MODEL=''"),
        ({"TOKEN_BUDGET": "10"}, 2, "RYZ_TOKEN_BUDGET"),
        ({"GROUP": "a b"}, 2, "RYZ_GROUP='a b'"),
        ({"MODEL": "/nowhere"}, 2, "the model directory /nowhere does not exist"),
    ],
)
async def test_what_is_wrong_ends_the_start_with_one_line(
    nats_url: str, settings: dict[str, str], code: int, complaint: str
) -> None:
    others = {name: value for name, value in settings.items() if name != "GROUP"}
    async with worker(nats_url, settings.get("GROUP", "wp1"), **others) as process:
        assert process.stderr is not None
        lines = (await process.stderr.read()).decode().splitlines()
        assert await process.wait() == code
    assert [line for line in lines if complaint in line]
    assert "Traceback" not in "".join(lines)
