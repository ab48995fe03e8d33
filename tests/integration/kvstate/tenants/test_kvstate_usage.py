"""The ledger of usage and its sums on a real broker that is killed in mid-stream."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.streams import AT_ONCE, UsageStreams
from services.kvstate.usage.sums import UsageSums
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.messages import UsageRecord, UsageSum
from shared.usage.ledger import UsageLedger
from tests.kits.servers import NatsServer
from tests.kits.waiting import until

ENDED_MS = 1_790_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def connect(stack: AsyncExitStack, broker: NatsServer) -> NatsBus:
    bus = await NatsBus.connect(broker.url, name="test")
    stack.push_async_callback(bus.close)
    return bus


def spawn(stack: AsyncExitStack, work: asyncio.Task[None]) -> None:
    async def end() -> None:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    stack.push_async_callback(end)


async def always() -> bool:
    return True


async def rolling(stack: AsyncExitStack, broker: NatsServer) -> UsageSums:
    """A replica of the service that adds usage up."""
    bus = await connect(stack, broker)
    sums = UsageSums()
    streams = UsageStreams(JetStream(bus), 40_000)
    roller = UsageRoller(
        streams, sums, AccountRegister(), UsageMetrics(CollectorRegistry()), keep_days=40_000
    )
    spawn(stack, asyncio.create_task(roller.run_forever(lambda: bus.restored_at, always)))
    return sums


async def writing(stack: AsyncExitStack, broker: NatsServer) -> UsageLedger:
    """The ledger of a leader."""
    ledger = UsageLedger(await connect(stack, broker))
    await ledger.start()
    spawn(stack, asyncio.create_task(ledger.send_forever()))
    return ledger


def record(number: int) -> UsageRecord:
    return UsageRecord(
        request_id=f"r{number}",
        tenant=f"t{number % 5}",
        model="demo",
        prompt_tokens=number,
        completion_tokens=3,
        ended_ms=ENDED_MS,
    )


def total(sums: UsageSums) -> tuple[int, int, int]:
    found: list[UsageSum] = sums.page("", "", "", "")[0]
    return (
        sum(one.requests for one in found),
        sum(one.prompt_tokens for one in found),
        sum(one.completion_tokens for one in found),
    )


def expected(number: int) -> tuple[int, int, int]:
    return number, number * (number - 1) // 2, 3 * number


async def test_a_broker_that_is_killed_in_mid_stream_loses_and_doubles_nothing(
    broker: NatsServer, stack: AsyncExitStack
) -> None:
    sums = await rolling(stack, broker)
    ledgers = [await writing(stack, broker) for _ in range(2)]
    number = 3000
    for index in range(number):
        ledgers[index % 2].put(record(index))
        if index % 50 == 0:
            await asyncio.sleep(0.01)
        if index in {500, 1300, 2400}:
            broker.stop(kill=True)
            await asyncio.sleep(0.05)
            broker.start()
    await until(lambda: total(sums) == expected(number))
    await until(lambda: not any(ledger.num_waiting for ledger in ledgers))
    assert not any(ledger.counts.dropped for ledger in ledgers)
    fresh = await rolling(stack, broker)  # from the streams alone
    await until(lambda: total(fresh) == expected(number))


async def test_two_replicas_that_both_work_count_once(broker: NatsServer, stack: AsyncExitStack) -> None:
    both = [await rolling(stack, broker) for _ in range(2)]
    ledger = await writing(stack, broker)
    for index in range(1000):
        ledger.put(record(index))
        if index % 20 == 0:
            await asyncio.sleep(0.01)
    for sums in both:
        await until(lambda sums=sums: total(sums) == expected(1000))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert [total(sums) for sums in both] == [expected(1000)] * 2


async def test_copies_are_dropped_by_the_broker_and_numbers_are_in_order(
    broker: NatsServer, stack: AsyncExitStack
) -> None:
    bus = await connect(stack, broker)
    jetstream = JetStream(bus)
    streams = UsageStreams(jetstream, 400)
    await streams.ensure()
    ledger = await writing(stack, broker)
    for index in range(AT_ONCE + 10):
        ledger.put(record(index))
        ledger.flush()
    await until(lambda: ledger.num_waiting == 0)
    await jetstream.put("ryz.v1.stream.usage.t0", b"again", message_id="one")
    await jetstream.put("ryz.v1.stream.usage.t0", b"again", message_id="one")
    first = await streams.records(0)
    second = await streams.records(first[-1].seq)
    assert [one.seq for one in first + second] == list(range(1, AT_ONCE + 12))
    assert await streams.records(second[-1].seq) == []


async def test_without_jetstream_nothing_fails(tmp_path: Path, stack: AsyncExitStack) -> None:
    plain = NatsServer(tmp_path)
    plain.start()
    stack.callback(plain.stop)
    sums = await rolling(stack, plain)
    ledger = await writing(stack, plain)
    ledger.put(record(1))
    with suppress(TimeoutError):
        await until(lambda: ledger.num_waiting == 0, timeout_s=1.0)
    assert (ledger.num_waiting, total(sums)) == (1, (0, 0, 0))
