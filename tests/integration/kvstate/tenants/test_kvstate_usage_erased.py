"""A tenant's usage loses its name on a real broker while services and the broker are killed."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.usage.erased import is_mark
from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.stored_sums import StoredSum
from services.kvstate.usage.streams import ALL_SUMS, POSITION, UsageStreams
from services.kvstate.usage.sums import UsageSums
from services.kvstate.usage.tenant_usage import TenantUsage
from shared import codec, streams
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.errors import RyzError
from shared.messages import UsageRecord, UsageRecords, UsageSum
from shared.messages.tenants.accounts import ERASED_TENANTS
from tests.kits.servers import NatsServer
from tests.kits.waiting import until

ENDED_MS, DAY_MS = 1_790_000_000_000, 86_400_000
KEYS = ("", "0123456789ab", "0123456789ac")
DAYS, EACH, AT_ONCE = 4, 90, 6  # records of a tenant and day, and of a message


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def bus(broker: NatsServer) -> AsyncIterator[NatsBus]:
    async with AsyncExitStack() as stack:
        bus = await NatsBus.connect(broker.url, name="test")
        stack.push_async_callback(bus.close)
        yield bus


async def fill(usage: UsageStreams) -> None:
    for tenant in ("acme", "other"):
        for day in range(DAYS):
            records = [
                UsageRecord(
                    request_id=f"{tenant}-{day}-{number}", tenant=tenant, key_id=KEYS[number % 3],
                    model="demo", prompt_tokens=10, completion_tokens=number % 7,
                    ended_ms=ENDED_MS + day * DAY_MS,
                )
                for number in range(EACH)
            ]  # fmt: skip
            for begin in range(0, EACH, AT_ONCE):
                await usage.add_records(tenant, records[begin : begin + AT_ONCE])


def counts(sums: list[UsageSum]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for one in sums:
        for name in ("requests", "prompt_tokens", "completion_tokens"):
            found[one.day, one.tenant, name] += getattr(one, name)
    return found


def renamed(found: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    return Counter(
        {(day, ERASED_TENANTS if who == "acme" else who, name): n for (day, who, name), n in found.items()}
    )


async def always() -> bool:
    return True


async def names(jetstream: JetStream) -> set[str]:
    """Tenants of the ledger and of the sums, as they are stored."""
    records = await jetstream.read(streams.USAGE_STREAM, streams.usage("*"), 0, 10_000)
    sums = await jetstream.read(streams.USAGE_SUMS_STREAM, ALL_SUMS, 0, 10_000)
    found = {one.tenant for message in records for one in codec.decode(message.data, UsageRecords).records}
    return found | {
        codec.decode(message.data, StoredSum).total.tenant
        for message in sums
        if not is_mark(message.subject) and message.subject != POSITION
    }


@pytest.mark.parametrize("broker_dies_at", [6, 9])
async def test_kills_of_service_and_broker_count_nothing_twice(
    broker: NatsServer, bus: NatsBus, broker_dies_at: int
) -> None:
    jetstream, order = JetStream(bus, timeout_s=2.0), random.Random(3)
    usage = UsageStreams(jetstream, 4000)
    await usage.ensure()
    await fill(usage)

    def start() -> tuple[asyncio.Task[None], UsageSums]:
        sums = UsageSums()
        metrics = UsageMetrics(CollectorRegistry())
        roller = UsageRoller(
            UsageStreams(jetstream, 4000), sums, AccountRegister(), metrics, keep_days=40_000
        )
        return asyncio.create_task(roller.run_forever(lambda: bus.restored_at, always)), sums

    def shown(sums: UsageSums) -> list[UsageSum]:
        return sums.page("", "", "", "")[0]

    task, sums = start()
    await until(lambda: sum(one.requests for one in shown(sums)) == 2 * DAYS * EACH)
    before = counts(shown(sums))
    erasure = TenantUsage(usage)
    await erasure.begin_erasure("acme")
    kills = 0

    async def is_clean() -> bool:
        try:
            mark, _ = await usage.erasure("acme")
        except RyzError:  # the broker is not there yet
            return False
        return mark is not None and mark.clean

    while not await is_clean() and kills < 60:
        await asyncio.sleep(order.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        kills += 1
        if kills == broker_dies_at:
            broker.stop(kill=True)
            broker.start()
            await until(lambda: bus.connected)
        task, sums = start()
    assert kills > 5, "it was over before it could be killed"
    await usage.add_records("acme", [UsageRecord(request_id="acme-0-0", tenant="acme", model="demo",
                                                 prompt_tokens=10, ended_ms=ENDED_MS)])  # fmt: skip

    async def is_over() -> bool:
        left = await usage.records_of("acme", 0, 10)
        return not left and not (await erasure.progress("acme")).left

    async def no_name() -> bool:
        try:
            return await names(jetstream) == {ERASED_TENANTS, "other"}
        except RyzError:  # the broker is not there yet
            return False

    await until(is_over)
    for _ in range(2):  # a broker that is killed brings back what was removed: it is removed again
        await until(lambda: bus.connected)
        await until(no_name)
        await usage.refresh(sums)
        assert counts(shown(sums)) == renamed(before)
        assert {one.key_id for one in shown(sums) if one.tenant == ERASED_TENANTS} == {""}
        broker.stop(kill=True)
        broker.start()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await jetstream.stop()
