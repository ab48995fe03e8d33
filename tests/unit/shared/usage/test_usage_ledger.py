"""Records of usage reach the ledger, whatever happens to the broker in between."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.messages import UsageRecord
from shared.usage import ledger as module
from shared.usage.ledger import UsageLedger
from tests.kits.memory_bus import MemoryBus
from tests.kits.tenants.ledger import MemoryLedger
from tests.kits.waiting import PATIENCE_S, until


def record(name: str) -> UsageRecord:
    return UsageRecord(request_id=name, model="demo", prompt_tokens=3)


def names(stream: MemoryLedger) -> list[str]:
    return [one.request_id for one in stream.records]


@pytest.fixture
async def ledger(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UsageLedger]:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    monkeypatch.setattr(module, "MISSING_S", 0.1)
    ledger = UsageLedger(memory_bus)
    await ledger.start()
    task = asyncio.create_task(ledger.send_forever())
    yield ledger
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await ledger.close(0.0)


async def test_a_record_is_written_once(memory_bus: MemoryBus, ledger: UsageLedger) -> None:
    stream = MemoryLedger(memory_bus)
    await stream.start()
    ledger.put(record("a"))
    await until(lambda: ledger.num_waiting == 0)
    assert (names(stream), ledger.counts.written) == (["a"], 1)


async def test_what_is_not_acknowledged_is_published_again(
    memory_bus: MemoryBus, ledger: UsageLedger
) -> None:
    stream = MemoryLedger(memory_bus)
    await stream.start()
    stream.silent = True
    ledger.put(record("a"))
    await until(lambda: ledger.counts.again > 0)
    stream.silent = False
    await until(lambda: ledger.num_waiting == 0)
    assert names(stream) == ["a"]


async def test_after_a_lost_connection_acknowledged_records_come_again(
    memory_bus: MemoryBus, ledger: UsageLedger
) -> None:
    stream = MemoryLedger(memory_bus)
    await stream.start()
    for name in ("a", "b"):
        ledger.put(record(name))
    await until(lambda: ledger.counts.written == 2)
    stream.lose_last()
    memory_bus.broker.stop()
    ledger.put(record("c"))  # while it is away
    memory_bus.broker.start()
    await until(lambda: {"b", "c"} <= set(names(stream)) and ledger.num_waiting == 0)


async def test_without_a_ledger_requests_go_on_and_it_is_noticed(
    memory_bus: MemoryBus, ledger: UsageLedger
) -> None:
    for number in range(5):
        ledger.put(record(f"a{number}"))
    await until(lambda: ledger.counts.missing)
    stream = MemoryLedger(memory_bus)
    await stream.start()  # the service that makes it starts late
    await until(lambda: not ledger.counts.missing and ledger.num_waiting == 0)
    assert sorted(names(stream)) == [f"a{number}" for number in range(5)]


async def test_memory_is_bounded(
    memory_bus: MemoryBus, ledger: UsageLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        ledger.put(record(f"a{number}"))
        ledger.flush()
        monkeypatch.setattr(module, "MAX_BYTES", 150)
    assert ledger.num_waiting + ledger.counts.dropped == 5
    assert 0 < ledger.num_waiting < 5


async def test_requests_that_end_together_are_one_message(memory_bus: MemoryBus, ledger: UsageLedger) -> None:
    stream = MemoryLedger(memory_bus)
    await stream.start()
    for number in range(module.MAX_RECORDS + 1):
        ledger.put(record(f"a{number}"))
    await until(lambda: ledger.num_waiting == 0)
    assert (stream.messages, len(stream.records)) == (2, module.MAX_RECORDS + 1)


async def test_without_a_ledger_the_end_does_not_wait(memory_bus: MemoryBus) -> None:
    ledger = UsageLedger(memory_bus)
    await ledger.start()
    ledger.put(record("a"))
    async with asyncio.timeout(PATIENCE_S):
        await ledger.close(timeout_s=10 * PATIENCE_S)
    assert ledger.num_waiting == 1
