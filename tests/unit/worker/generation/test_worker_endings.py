"""Ends of generations by deadline, full queue, cancel, engine failure and drain."""

import asyncio
import random
from collections.abc import Callable
from itertools import groupby

import pytest

from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.step_times import StepTimes
from shared import codec, subjects
from shared.bus.api import Message
from shared.messages import (
    Cancel,
    Done,
    Failed,
    Heartbeat,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine
from tests.kits.worker.options import scheduler_limits


async def test_deadlines_end_requests_that_wait_or_run(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.005), steps=scheduler_limits(64, 1, 4)) as kit:
        headers = {subjects.HEADER_TIMEOUT: "40"}
        await kit.ask(chat("runs", sampling={"max_tokens": 500}), headers)
        await kit.ask(chat("waits", sampling={"max_tokens": 500}), headers)
        for name in ("runs", "waits"):
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Failed)
            assert last.code == "deadline_exceeded"
        await kit.all_free()
        late = await kit.failure(chat("late"), {subjects.HEADER_TIMEOUT: "0"})
        assert late.code == "deadline_exceeded"
        odd = await kit.failure(chat("odd"), {subjects.HEADER_TIMEOUT: "soon"})
        assert odd.data["param"] == subjects.HEADER_TIMEOUT


async def test_a_full_queue_refuses_with_a_retry_time(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002), steps=scheduler_limits(64, 2, 2)) as kit:
        for number in range(6):
            await kit.ask(chat(f"r{number}"))
        lasts = [(await kit.end_of(f"r{number}"))[-1] for number in range(6)]
        assert [isinstance(last, Done) for last in lasts] == [True] * 4 + [False] * 2
        assert isinstance(lasts[-1], Failed)
        assert lasts[-1].code == "overloaded"
        assert lasts[-1].data["retry_after_s"] > 0


async def test_a_cancel_ends_what_runs_and_what_has_not_come_yet(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.005)) as kit:
        await kit.ask(chat("r", sampling={"max_tokens": 1000}))
        await asyncio.sleep(0.02)
        await kit.bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r", reason="bye")))
        await kit.all_free()
        last = (await kit.end_of("r"))[-1]
        assert isinstance(last, Failed)
        assert last.code == "cancelled"
        await kit.bus.publish(subjects.CANCEL_ALL, codec.encode(Cancel(request_id="early")))
        await asyncio.sleep(0.01)
        assert (await kit.failure(chat("early"))).code == "cancelled"


async def test_many_callers_a_third_of_them_leaves(memory_bus: MemoryBus) -> None:
    chance = random.Random(1)
    async with Kit(
        memory_bus, null_engine(blocks=120, delay_s=0.0005), steps=scheduler_limits(256, 64, 200)
    ) as kit:
        names = [f"r{number}" for number in range(200)]
        leaving = set(chance.sample(names, 67))

        async def call(name: str) -> None:
            await asyncio.sleep(chance.random() * 0.1)
            await kit.ask(
                chat(name, name * chance.randint(1, 30), sampling={"max_tokens": chance.randint(1, 40)})
            )
            if name in leaving:
                await asyncio.sleep(chance.random() * 0.05)
                await kit.bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id=name)))

        await asyncio.gather(*map(call, names))
        for name in names:
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Done) or name in leaving
        await kit.all_free()
        assert kit.metric("engine_failures_total") == 0


class Flaky:
    """An engine that fails at one step, and then at its first restarts."""

    def __init__(self, failing_step: int, failing_starts: int) -> None:
        self.inner = null_engine()
        self.failing_step, self.failing_starts = failing_step, failing_starts
        self.stops = 0
        self.steps = 0
        self.start_again = False

    async def start(self) -> object:
        if self.start_again and self.failing_starts:
            self.failing_starts -= 1
            raise EngineFailed("rank 1 did not come up")
        self.start_again = True
        return await self.inner.start()

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        self.steps += 1
        if self.steps == self.failing_step:
            raise EngineFailed("rank 1 died")
        return self.inner.submit(plan)

    async def fetch_blocks(self, order: FetchBlocks) -> FetchResult:
        return FetchResult(fetch_id=order.fetch_id, count=0)

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        return None

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        self.inner.watch_failures(on_failure)

    def status(self) -> list[dict[str, object]]:
        return self.inner.status()

    def step_times(self) -> StepTimes | None:
        return self.inner.step_times()

    async def stop(self) -> None:
        self.stops += 1
        await self.inner.stop()


async def test_a_failed_engine_fails_its_requests_and_comes_back(
    memory_bus: MemoryBus,
) -> None:
    engine = Flaky(failing_step=5, failing_starts=1)
    states: list[str] = []

    async def on_heartbeat(message: Message) -> None:
        states.append(codec.decode(message.data, Heartbeat).state)

    await memory_bus.subscribe(subjects.HEARTBEAT_ALL, on_heartbeat)
    quick = RestartPauses(first_s=0.05, longest_s=0.1)
    async with Kit(memory_bus, engine, heartbeat_interval_ms=10, back_off=quick) as kit:  # type: ignore[arg-type]
        kit.expected_errors = {"the engine failed"}
        await asyncio.gather(kit.ask(chat("a")), kit.ask(chat("b")))
        for name in ("a", "b"):
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Failed)
            assert last.code == "group_lost"
            assert "rank 1 died" in last.message
        assert (await kit.failure(chat("c"))).code == "unavailable"
        await kit.until(lambda: kit.leader.state == "ready")
        assert isinstance((await kit.run(chat("d")))[-1], Done)
        assert kit.metric("engine_failures_total") == 2
        assert engine.stops == 2
        assert [state for state, _ in groupby(states)] == ["starting", "ready", "recovering", "ready"]


async def test_an_engine_that_does_not_come_up_is_an_error_at_start(memory_bus: MemoryBus) -> None:
    engine = Flaky(failing_step=0, failing_starts=1)
    engine.start_again = True
    kit = Kit(memory_bus, engine)  # type: ignore[arg-type]
    with pytest.raises(EngineFailed, match="rank 1"):
        await kit.leader.start()
    await kit.leader.stop()


async def test_drain_lets_running_ones_end_and_refuses_new_ones(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.ask(chat("short", sampling={"max_tokens": 10}))
        await kit.ask(chat("endless", sampling={"max_tokens": 1900}))
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(kit.leader.drain(1.5))
        await asyncio.sleep(0.01)
        refused = await kit.failure(chat("new"))
        assert (refused.code, refused.data["reason"]) == ("unavailable", "draining")
        assert isinstance((await kit.end_of("short"))[-1], Done)
        await draining
        last = (await kit.end_of("endless"))[-1]
        assert isinstance(last, Failed)
        assert last.data["reason"] == "draining"
