"""A stack whose keys were required stays closed when its broker comes back without JetStream."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree

import pytest

from shared.accounts.register import AccountRegister
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.client.calls.accounts_sync import AccountsSync
from shared.errors import Unavailable
from shared.messages import KeyRecord, TenantRecord
from shared.streams import ACCOUNTS_STREAM, account_record
from tests.kits.kvstate.service import running
from tests.kits.servers import NatsServer, RedisServer
from tests.kits.waiting import until

WANTED = KeyRecord(key_id="0" * 12, digest=bytes(32))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[NatsServer]:
    """The broker without JetStream."""
    (tmp_path / "plain").mkdir()
    server = NatsServer(tmp_path / "plain")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[NatsServer]:
    """The broker with JetStream."""
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def client_of(broker: NatsServer, store: RedisServer, **more: object) -> AsyncIterator[AccountsClient]:
    async with running(broker.url, store.url, **more):
        bus = await NatsBus.connect(broker.url, name="test")
        try:
            yield AccountsClient(bus, "local")
        finally:
            await bus.close()


async def gateway_knows(broker: NatsServer) -> bool:
    """Whether a gateway that starts now finds out if requests need a key."""
    bus = await NatsBus.connect(broker.url, name="gateway")
    try:
        sync = AccountsSync(bus, AccountRegister())
        read = await sync.read()
        assert read == (sync.last_read_at > float("-inf"))
        return read
    finally:
        await bus.close()


async def test_a_first_start_without_jetstream_is_open(plain: NatsServer, store: RedisServer) -> None:
    async with client_of(plain, store) as client:
        assert await gateway_knows(plain)
        with pytest.raises(Unavailable) as refused:
            await client.create_key(WANTED)
        assert refused.value.data["reason"] == "no_jetstream"


async def test_jetstream_that_is_taken_away_opens_nothing(
    plain: NatsServer, kept: NatsServer, store: RedisServer
) -> None:
    async with client_of(kept, store) as client:
        assert (await client.create_key(WANTED)).closed_api
    async with client_of(plain, store) as client:
        assert not await gateway_knows(plain)
        with pytest.raises(Unavailable, match=r"needed a key.*JetStream.*docs/tenants.md") as refused:
            await client.read()
        assert refused.value.data["reason"] == "accounts_store"

    async with client_of(kept, store) as client:
        assert await gateway_knows(kept)
        await client.require_keys(required=False)
    async with client_of(plain, store):
        assert await gateway_knows(plain), "it was opened on purpose before"


async def empty_stream(broker: NatsServer) -> None:
    bus = await NatsBus.connect(broker.url, name="operator")
    jetstream = JetStream(bus)
    try:
        await jetstream.start()
        await jetstream.purge(ACCOUNTS_STREAM, account_record("*"))
        await jetstream.stop()
    finally:
        await bus.close()


async def check_emptied(client: AccountsClient, broker: NatsServer) -> None:
    assert not await gateway_knows(broker)
    with pytest.raises(Unavailable, match=r"lost its records.*ryz keys require off") as refused:
        await client.read()
    assert refused.value.data["reason"] == "accounts_emptied"


async def test_a_stream_that_was_purged_opens_nothing(kept: NatsServer, store: RedisServer) -> None:
    async with client_of(kept, store) as client:
        await client.create_key(WANTED)
        await empty_stream(kept)
        await check_emptied(client, kept)
        await client.put(TenantRecord(tenant="acme"))
        await check_emptied(client, kept)
    async with client_of(kept, store) as client:
        await check_emptied(client, kept)
        with pytest.raises(Unavailable):
            await client.create_key(WANTED)
        assert (await client.require_keys(required=True)).keys_required
        assert await gateway_knows(kept), "closed, and keys can be made"
        await client.create_key(WANTED)


@pytest.mark.parametrize("stopped", ["service", "broker"])
async def test_a_broker_that_lost_its_streams_opens_nothing_until_that_is_said(
    kept: NatsServer, store: RedisServer, tmp_path: Path, stopped: str
) -> None:
    async with client_of(kept, store) as client:
        await client.create_key(WANTED)
        if stopped == "broker":
            kept.stop()
            rmtree(tmp_path / "streams")
            kept.start()
            await until(lambda: gateway_knows_not(kept))
    if stopped == "service":
        kept.stop()
        rmtree(tmp_path / "streams")
        kept.start()
    async with client_of(kept, store) as client:
        await check_emptied(client, kept)
        assert not (await client.require_keys(required=False)).keys_required
        assert await gateway_knows(kept)
    async with client_of(kept, store):
        assert await gateway_knows(kept)
    await empty_stream(kept)
    async with client_of(kept, store):
        assert await gateway_knows(kept), "it was opened on purpose"


async def gateway_knows_not(broker: NatsServer) -> bool:
    return not await gateway_knows(broker)


async def test_without_redis_it_cannot_be_told(plain: NatsServer, store: RedisServer) -> None:
    async with client_of(plain, store, redis_timeout_s=0.2) as client:
        store.stop()
        assert not await gateway_knows(plain)
        with pytest.raises(Unavailable, match="cannot be told") as refused:
            await client.read()
        assert refused.value.data["reason"] == "accounts_store"
        store.start()


async def test_a_running_service_remembers_it_without_redis(kept: NatsServer, store: RedisServer) -> None:
    async with client_of(kept, store, redis_timeout_s=0.2) as client:
        await client.create_key(WANTED)
        await client.read()
        store.stop()
        kept.stop()
        assert kept.command[-3] == "-js"
        del kept.command[-3:]
        kept.start()
        said = ""

        async def is_refused() -> bool:
            nonlocal said
            try:
                await client.read()
            except Unavailable as error:
                said = error.message
            return "JetStream" in said

        await until(is_refused)
        assert "requests needed a key" in said
        assert not await gateway_knows(kept)
        store.start()
