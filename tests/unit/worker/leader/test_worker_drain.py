"""Draining a group: requests end or move, KV blocks and records are stored, and the time is bounded."""

import asyncio
import time
from typing import Any

import pytest

from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.fleet import drain as draining
from shared import codec, kv_hash, subjects
from shared.bus.api import Message
from shared.errors import InvalidRequest, Unavailable
from shared.messages import (
    ChatMessage,
    Done,
    DrainGroup,
    Draining,
    Failed,
    Heartbeat,
    SessionRef,
    Warmed,
    WarmSession,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.kv_tier import Group
from tests.kits.worker.leader import Kit, chat, null_engine, text_of

ENDLESS: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}


async def ask_to_drain(kit: Kit, timeout_ms: int = 0) -> Draining:
    asked = codec.encode(DrainGroup(timeout_ms=timeout_ms))
    answer = await kit.bus.request(subjects.drain(kit.group), asked, timeout_s=2)
    return codec.decode_reply(answer.data, Draining)


async def moved(kit: Kit, request_id: str) -> Failed:
    last = (await kit.end_of(request_id))[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.data["reason"]) == ("group_lost", "draining")
    return last


def scheduler_of(kit: Kit) -> Scheduler:
    scheduler = kit.leader.parts.engine.scheduler
    assert scheduler is not None
    return scheduler


async def test_asked_on_the_bus_it_answers_refuses_and_moves(memory_bus: MemoryBus) -> None:
    states: list[str] = []

    async def on_heartbeat(message: Message) -> None:
        states.append(codec.decode(message.data, Heartbeat).state)

    await memory_bus.subscribe(subjects.heartbeat("g0"), on_heartbeat)
    async with Kit(memory_bus, null_engine(delay_s=0.002), heartbeat_interval_ms=60_000) as kit:
        await kit.ask(chat("short", sampling={"max_tokens": 20}))
        await kit.ask(chat("endless", sampling=ENDLESS))
        await kit.until(lambda: bool(text_of(kit.frames["endless"])))
        answer = await ask_to_drain(kit, timeout_ms=60_000)
        assert (answer.group, answer.instance_id, answer.requests) == ("g0", "i", 2)
        assert 59_000 < answer.timeout_ms <= 60_000
        await kit.until(lambda: states[-1] == "draining")  # at once, not after the heartbeat interval
        assert kit.leader.state == kit.leader.detail()["state"] == "draining"
        refused = await kit.failure(chat("new"))
        assert (refused.code, refused.data["reason"]) == ("unavailable", "draining")
        warm = codec.encode(WarmSession(tenant="default", session_id="s"))
        answered = await memory_bus.request(subjects.warm("g0"), warm, timeout_s=2)
        with pytest.raises(Unavailable, match="shutting down"):
            codec.decode_reply(answered.data, Warmed)
        assert isinstance((await kit.end_of("short"))[-1], Done)
        assert not kit.leader.drained.is_set()

        again = await ask_to_drain(kit, timeout_ms=100)  # the shortest timeout counts
        assert again.requests == 1
        assert again.timeout_ms <= 100
        await moved(kit, "endless")
        async with asyncio.timeout(PATIENCE_S):
            await kit.leader.drained.wait()
        await ask_to_drain(kit)
        assert kit.leader.parts.table.counts.broken == 0
        assert kit.leader.parts.table.counts.ended == 1  # a moved request is not counted here


async def test_nonsense_does_not_drain(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        answer = await memory_bus.request(subjects.drain("g0"), b"\xc1", timeout_s=2)
        with pytest.raises(InvalidRequest):
            codec.decode_reply(answer.data, Draining)
        assert kit.leader.state == "ready"


async def test_what_moves_finds_its_blocks_in_the_store(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus, engine={"delay_s": 0.002}) as kit:
        await kit.ask(chat("endless", prompt="x" * 200, sampling=ENDLESS | {"max_tokens": 700}))
        await kit.until(lambda: len(text_of(kit.frames["endless"])) > 20)
        behind = scheduler_of(kit).write_behind
        await kit.leader.drain(0.05)
        await moved(kit, "endless")
        done = 200 + len(text_of(kit.frames["endless"]))
        assert not behind.due()
        assert len(kit.blocks) >= (done - 1) // 16
    held = {name for one in kit.index.held for name in kv_hash.split(one.names)}
    assert held == kit.blocks.keys()


async def test_sessions_leave_their_blocks_and_records(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        session = SessionRef(session_id="s")
        for turn in range(3):
            text = chat(f"t{turn}", "Hello there! " * 5, session=session)
            assert isinstance((await kit.run(text))[-1], Done)
        record = kit.store.records["default", "s"]
        names = kit.leader.kv_names(codec.unpack_tokens(record.token_ids))
        behind = scheduler_of(kit).write_behind
        await kit.until(lambda: behind.num_known_of(names[:-1]) == len(names) - 1)
        kit.blocks.clear()
        kit.index.commits.clear()
        behind.forget_all()  # as after an outage of the store
        await kit.leader.drain(1.0)
        assert kit.blocks.keys() >= set(names[:-1])
    held = [one for one in kit.index.held if one.session_id == "s"]
    assert kv_hash.split(held[-1].names)[: len(names) - 1] == names[:-1]
    assert kit.store.records["default", "s"].messages[0] == ChatMessage(
        role="user", content="Hello there! " * 5
    )


async def test_a_store_that_hangs_does_not_hold_it_up(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus, engine={"delay_s": 0.002}) as kit:
        kit.ranks.never_writes = True
        await kit.ask(chat("endless", prompt="x" * 200, sampling=ENDLESS | {"max_tokens": 700}))
        await kit.until(lambda: len(text_of(kit.frames["endless"])) > 20)
        began = time.monotonic()
        await kit.leader.drain(0.0)
        assert time.monotonic() - began < draining.HAND_OVER_S + 20.0
        await moved(kit, "endless")


async def test_without_a_broker_it_ends_too(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.ask(chat("endless", sampling=ENDLESS))
        await kit.until(lambda: bool(kit.frames["endless"]))
        memory_bus.broker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await kit.leader.drain(0.1)
        memory_bus.broker.start()
        assert kit.leader.load().running == 0


@pytest.mark.sources
async def test_it_may_drain_before_it_is_ready(memory_bus: MemoryBus) -> None:
    engine = null_engine()
    start, release = engine.start, asyncio.Event()

    async def late_start() -> Any:
        await release.wait()
        return await start()

    engine.start = late_start  # type: ignore[method-assign]
    kit = Kit(memory_bus, engine)
    starting = asyncio.create_task(kit.leader.start())
    await kit.until(lambda: len(kit.leader.parts.subscriptions) > 8)
    await asyncio.sleep(0.01)
    assert (await ask_to_drain(kit)).requests == 0
    async with asyncio.timeout(PATIENCE_S):
        await kit.leader.drained.wait()
    release.set()
    await starting
    states = [kit.leader.state]
    await kit.leader.stop()
    assert [*states, kit.leader.state] == ["draining", "stopped"]


async def test_a_drain_that_is_cut_short_moves_what_runs(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.ask(chat("endless", sampling=ENDLESS))
        await kit.until(lambda: bool(kit.frames["endless"]))
        waiting = asyncio.create_task(kit.leader.drain(60.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await kit.leader.stop()
        await moved(kit, "endless")
