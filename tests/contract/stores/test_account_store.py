"""The contract of stores of tenants and keys, and of audit logs: the plain ones, and those in streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.kvstate.accounts.store import AccountStore, AuditLog, VersionMoved
from services.kvstate.accounts.stream_accounts import StreamAccounts
from services.kvstate.accounts.stream_audit import StreamAudit
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.messages import AccountRecord, AccountRules, AuditEntry, KeyRecord, PriceRecord, TenantRecord
from tests.kits.kvstate.memory_accounts import MemoryAccounts, MemoryAudit
from tests.kits.servers import NatsServer

ACME = TenantRecord(tenant="acme")
KEY = KeyRecord(key_id="0123456789ab", tenant="acme", digest=bytes(32))
PRICE = PriceRecord(model="org/base:french", prompt=7)
Replicas = Callable[[], AccountStore]


@pytest.fixture(params=["memory", "stream"])
async def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Replicas]:
    """Makes stores that share their contents, as replicas of the service do."""
    if request.param == "memory":
        one = MemoryAccounts()
        yield lambda: one
        return
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    bus = await NatsBus.connect(server.url, name="test")
    made = list[JetStream]()

    def another() -> AccountStore:
        made.append(JetStream(bus))
        return StreamAccounts(bus, made[-1], max_dropped=5)

    yield another
    for jetstream in made:
        await jetstream.stop()
    await bus.close()
    server.stop()


@pytest.fixture(params=["memory", "stream"])
async def audit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AuditLog]:
    if request.param == "memory":
        yield MemoryAudit()
        return
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    bus = await NatsBus.connect(server.url, name="test")
    jetstream = JetStream(bus)
    yield StreamAudit(jetstream)
    await jetstream.stop()
    await bus.close()
    server.stop()


async def test_records_are_put_changed_and_removed(replicas: Replicas) -> None:
    store = replicas()
    assert (await store.read()).version == 0
    records: list[AccountRecord] = [ACME, KEY, PRICE, AccountRules(currency="EUR")]
    for version, record in enumerate(records):
        await store.write(record.name, record, version)
    table = await store.read()
    assert table.version == 4
    assert table.all_keys() == [KEY]
    assert {name: table.count(name) for name in ("tenant", "key", "price")} == {
        "tenant": 1,
        "key": 1,
        "price": 1,
    }
    found = table.stored(PRICE.name)
    assert found is not None
    assert (found.record, found.revision) == (PRICE, 3)
    wider = TenantRecord(tenant="acme", weight=2.0)
    await store.write(ACME.name, wider, 4)
    await store.write(KEY.name, None, 5)
    table = await store.read()
    assert table.version == 6
    assert table.stored(KEY.name) is None
    assert table.all_keys() == []
    changed = table.stored(ACME.name)
    assert changed is not None
    assert (changed.record, changed.revision) == (wider, 5)


async def test_a_removed_name_can_be_made_again(replicas: Replicas) -> None:
    store = replicas()
    assert (await store.read()).version == 0
    for version, record in enumerate((ACME, None, ACME, None, ACME)):
        await store.write(ACME.name, record, version)
    table = await store.read()
    assert table.version == 5
    found = table.stored(ACME.name)
    assert found is not None
    assert found.revision == 5


async def test_of_two_writers_one_has_to_read_again(replicas: Replicas) -> None:
    one, other = replicas(), replicas()
    assert (await one.read()).version == (await other.read()).version == 0
    await one.write(ACME.name, ACME, 0)
    with pytest.raises(VersionMoved):
        await other.write(PRICE.name, PRICE, 0)
    table = await other.read()
    assert table.version == 1
    assert table.stored(ACME.name) is not None
    assert table.stored(PRICE.name) is None
    await other.write(PRICE.name, PRICE, 1)
    assert (await one.read()).stored(PRICE.name) is not None


async def test_each_of_many_changes_of_replicas_at_once_is_done_once(replicas: Replicas) -> None:
    stores = [replicas() for _ in range(3)]

    async def put(number: int) -> None:
        store, record = stores[number % 3], TenantRecord(tenant=f"t{number}")
        while True:
            version = (await store.read()).version
            try:
                await store.write(record.name, record, version)
            except VersionMoved:
                continue
            return

    await asyncio.gather(*(put(number) for number in range(30)))
    for store in stores:
        table = await store.read()
        assert table.version == table.count("tenant") == 30
    revisions = [
        found.revision for number in range(30) if (found := table.stored(f"tenant.t{number}")) is not None
    ]
    assert sorted(revisions) == list(range(1, 31))


async def test_pages_have_all_records_by_name(replicas: Replicas) -> None:
    store = replicas()
    assert (await store.read()).version == 0
    for version in range(20):
        record = TenantRecord(tenant=f"t{version * 7 % 20:02}")
        await store.write(record.name, record, version)
    table, names, cursor = await store.read(), list[str](), ""
    for _ in range(20):
        page = table.page(cursor, 200, 0)
        names += [stored.record.name for stored in page.records]
        cursor = page.cursor
        if not cursor:
            break
    assert names == [f"tenant.t{number:02}" for number in range(20)]
    assert table.page("", 200, 20).records == []
    assert len(table.page("", 1, 19).records) == 1


async def test_many_removed_records_leave_no_trace_but_the_version(replicas: Replicas) -> None:
    one, other = replicas(), replicas()
    version = (await one.read()).version
    for number in range(12):
        record = TenantRecord(tenant=f"t{number}")
        await one.write(record.name, record, version)
        if number == 8:
            assert (await other.read()).count("tenant") == 1, "it has what is removed and dropped soon"
        await one.write(record.name, None, version + 1)
        version += 2
    for store in (one, other, replicas()):
        table = await store.read()
        assert table.version == version
        assert table.count("tenant") == 0
        if not isinstance(store, MemoryAccounts):
            assert len(table.dropped) < 12
    await other.write(ACME.name, ACME, version)
    assert (await one.read()).version == version + 1


async def test_entries_are_read_newest_first(audit: AuditLog) -> None:
    assert await audit.newest(0, 10) == []
    numbers = [
        await audit.add(AuditEntry(actor="local", action="put", subject=f"tenant.t{number}"))
        for number in range(25)
    ]
    assert numbers == sorted(set(numbers))
    first = await audit.newest(0, 10)
    assert [entry.subject for entry in first] == [f"tenant.t{number}" for number in range(24, 14, -1)]
    assert [entry.number for entry in first] == numbers[:14:-1]
    rest = await audit.newest(first[-1].number, 100)
    assert [entry.subject for entry in rest] == [f"tenant.t{number}" for number in range(14, -1, -1)]
    assert await audit.newest(rest[-1].number, 100) == []
