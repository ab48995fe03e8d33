"""A copy of tenants, keys and prices is read on start, follows news, and is read again after losses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from shared import subjects
from shared.accounts.register import AccountRegister
from shared.bus.endpoint import Endpoint
from shared.client.calls.accounts_sync import AccountsSync, read_accounts
from shared.codec import encode
from shared.errors import Unavailable
from shared.messages import (
    AccountChanged,
    AccountPage,
    AccountQuery,
    KeyRecord,
    StoredAccount,
    TenantRecord,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until

KEY = KeyRecord(key_id="0123456789ab", tenant="acme", digest=bytes(32))


def tenant(number: int) -> TenantRecord:
    return TenantRecord(tenant=f"t{number}")


class Service:
    """Answers as the KV state service does, two records to a page."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.records: dict[str, StoredAccount] = {}
        self.version = 0
        self.away = ""  # the reason
        self.queries: list[AccountQuery] = []
        self.before_answer: Callable[[], None] = lambda: (
            None
        )  # runs when a page was read, and is not sent yet
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self) -> None:
        handler = Endpoint(self.bus).handler(AccountQuery, self.answer)
        await self.bus.subscribe(subjects.ACCOUNTS, handler, max_concurrent=4)

    async def answer(self, query: AccountQuery, _: object) -> AccountPage:
        self.queries.append(query)
        if self.away:
            raise Unavailable("no store", reason=self.away)
        page = self._page(query)
        self.before_answer()
        await self.gate.wait()
        return page

    def _page(self, query: AccountQuery) -> AccountPage:
        if query.known == self.version > 0:
            return AccountPage(version=self.version)
        names = [name for name in sorted(self.records) if name > query.cursor]
        shown = [self.records[name] for name in names[:2]]
        return AccountPage(records=shown, version=self.version, cursor=names[1] if len(names) > 2 else "")

    def put(self, record: TenantRecord | KeyRecord, *, told: bool = True) -> None:
        stored = StoredAccount(record=record, revision=self.version + 1)
        self.records[record.name] = stored
        self._changed(AccountChanged(before=self.version, version=self.version + 1, put=stored), told)

    def remove(self, name: str, *, told: bool = True) -> None:
        del self.records[name]
        self._changed(AccountChanged(before=self.version, version=self.version + 1, removed=name), told)

    def _changed(self, change: AccountChanged, told: bool) -> None:
        self.version = change.version
        if told:
            self.bus.publish_now(subjects.ACCOUNT_CHANGED, encode(change))


@asynccontextmanager
async def kept(
    *, refresh_s: float = 3600.0, read: bool = True
) -> AsyncIterator[tuple[Service, AccountsSync, list[str]]]:
    bus, events = MemoryBus(), list[str]()
    service = Service(bus)
    await service.start()
    for number in range(5):
        service.put(tenant(number))
    sync = AccountsSync(MemoryBus(bus.broker), AccountRegister(), refresh_s, events.append)
    await sync.listen()
    keeping = asyncio.create_task(sync.keep())
    if read:
        await until(lambda: sync.register.is_current)
    try:
        yield service, sync, events
    finally:
        keeping.cancel()


async def test_all_pages_are_read_on_start() -> None:
    async with kept() as (service, sync, _):
        assert [one.tenant for one in sync.register.tenants()] == ["t0", "t1", "t2", "t3", "t4"]
        assert sync.register.version == service.version == 5
        assert sync.last_read_at > float("-inf")
        assert await read_accounts(service.bus, 5) == ([], 5)


async def test_news_hold_without_a_question() -> None:
    async with kept() as (service, sync, events):
        asked = len(service.queries)
        service.put(KEY)
        await until(lambda: sync.register.key(KEY.key_id) == KEY)
        service.remove(KEY.name)
        await until(lambda: sync.register.key(KEY.key_id) is None)
        assert sync.register.version == 7
        assert len(service.queries) == asked
        assert events == ["accounts_changed", "accounts_changed"]


async def test_a_missed_change_is_read() -> None:
    async with kept() as (service, sync, _):
        service.put(tenant(8), told=False)
        service.put(tenant(9))
        await until(lambda: sync.register.tenant("t9") is not None)
        await until(lambda: sync.register.tenant("t8") is not None)
        assert sync.register.is_current


async def test_a_lost_change_is_found_by_the_version() -> None:
    async with kept(refresh_s=0.02) as (service, sync, _):
        service.put(tenant(8), told=False)
        await until(lambda: sync.register.tenant("t8") is not None)
        asked, whole = len(service.queries), sync.register.changed_at
        await until(lambda: len(service.queries) > asked + 2)
        assert service.queries[-1].known == 6, "it asks only whether there is anything new"
        assert sync.register.changed_at == whole


async def test_it_is_read_whole_when_the_broker_is_back() -> None:
    async with kept() as (service, sync, _):
        service.bus.broker.stop()
        # the broker has lost what it had, and has by chance as many changes again
        service.records = {tenant(10).name: StoredAccount(record=tenant(10), revision=5)}
        assert service.version == sync.register.version
        service.bus.broker.start()
        await until(lambda: sync.register.tenant("t10") is not None)
        assert len(sync.register) == 1


async def test_a_removed_key_is_gone_at_once_also_during_a_read() -> None:
    async with kept() as (service, sync, _):
        service.put(KEY)
        await until(lambda: sync.register.key(KEY.key_id) == KEY)
        service.gate.clear()
        asked = len(service.queries)
        service.put(tenant(8), told=False)
        service.put(tenant(9))  # has it read the records, whose first page has the key
        await until(lambda: len(service.queries) > asked)
        service.remove(KEY.name)
        await until(lambda: sync.register.key(KEY.key_id) is None)
        assert not service.gate.is_set(), "while the read is under way"
        service.gate.set()
        await until(lambda: sync.register.is_current and sync.register.version == service.version)
        assert sync.register.key(KEY.key_id) is None
        assert sync.register.tenant("t8") is not None


async def test_what_is_known_stands_while_the_service_is_away() -> None:
    async with kept(refresh_s=0.02) as (service, sync, events):
        service.away = "accounts_store"
        await until(lambda: "accounts_not_read" in events)
        assert not sync.no_store
        read_at, asked = sync.last_read_at, len(service.queries)
        await until(lambda: len(service.queries) > asked + 2)
        assert sync.last_read_at == read_at
        assert sync.register.is_current
        assert len(sync.register) == 5
        service.away = "no_jetstream"
        await until(lambda: sync.no_store)
        assert len(sync.register) == 5
        service.away = ""
        await until(lambda: sync.last_read_at > read_at)
        assert not sync.no_store


async def test_where_the_broker_keeps_no_streams_there_are_no_records() -> None:
    async with kept(read=False) as (service, sync, _):
        service.away = "no_jetstream"
        assert await sync.read()
        assert sync.register.is_current
        assert sync.no_store
        assert not len(sync.register)
        assert sync.last_read_at > float("-inf")
        service.away = ""
        assert await sync.read()
        assert len(sync.register) == 5
        service.away = "no_jetstream"
        assert not await sync.read(), "what was there stands"
        assert len(sync.register) == 5


async def test_a_read_that_a_change_cuts_in_two_begins_again() -> None:
    async with kept(read=False) as (service, sync, _):
        left = [8, 7, 6]

        def change() -> None:
            if left and not service.queries[-1].cursor:
                service.put(tenant(left.pop()), told=False)

        service.before_answer = change
        await until(lambda: sync.register.is_current)
        assert len(sync.register) == 8


async def test_bad_news_are_counted() -> None:
    async with kept() as (service, sync, events):
        service.bus.publish_now(subjects.ACCOUNT_CHANGED, b"\xc1")
        await until(lambda: "bad_account_news" in events)
        assert sync.register.is_current
