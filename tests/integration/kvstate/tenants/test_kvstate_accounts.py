"""The calls about tenants, keys and prices on a real broker: rules, order, replicas, losses."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from shared import subjects
from shared.accounts.keys import digest_of, key_id_of, new_key
from shared.accounts.register import AccountRegister
from shared.bus.endpoint import Endpoint, call
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.client.calls.accounts_sync import AccountsSync
from shared.errors import AccountNotFound, Conflict, InvalidRequest, RyzError, Unavailable
from shared.messages import (
    AccountChange,
    AccountChanged,
    AccountStored,
    KeyRecord,
    Limits,
    PriceRecord,
    Scopes,
    TenantRecord,
)
from tests.kits.kvstate.account_replicas import account_replica
from tests.kits.kvstate.service import running
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until

ACME = TenantRecord(tenant="acme", limits=Limits(running=3), time_zone="Europe/Berlin")
WANTED = KeyRecord(key_id="0" * 12, digest=bytes(32), tenant="acme", label="ci")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def bus(broker: NatsServer) -> AsyncIterator[NatsBus]:
    made = await NatsBus.connect(broker.url, name="test")
    yield made
    await made.close()


@pytest.fixture
async def client(broker: NatsServer, bus: NatsBus) -> AsyncIterator[AccountsClient]:
    """A client of one replica."""
    async with account_replica(broker.url):
        yield AccountsClient(bus, "local")


async def test_a_tenant_and_its_key_are_made_and_published(client: AccountsClient, bus: NatsBus) -> None:
    register = AccountRegister()
    sync = AccountsSync(bus, register)
    await sync.listen()
    await bus.flush()
    assert await sync.read()
    await client.put(ACME, expected=0)
    made = await client.create_key(WANTED)
    assert made.closed_api
    assert key_id_of(made.text) == made.record.key_id
    assert made.record.digest == digest_of(made.text)
    assert abs(made.record.created_s - time.time()) < PATIENCE_S
    await until(lambda: register.key(made.record.key_id) == made.record)
    assert register.rules.keys_required
    assert register.is_current
    assert (await client.read()).keys() == [made.record]
    second = await client.create_key(WANTED)
    assert not second.closed_api
    await client.remove(made.record.name)
    await until(lambda: register.key(made.record.key_id) is None)
    left = (await client.read()).keys()
    assert [key.key_id for key in left] == [second.record.key_id]
    await client.remove(second.record.name)
    assert (await client.read()).rules.keys_required, "the last key that is gone does not open the API"
    assert not (await client.require_keys(required=False)).keys_required


async def test_a_key_for_admins_does_not_close_the_api(client: AccountsClient) -> None:
    made = await client.create_key(replace(WANTED, tenant="default", scopes=Scopes(admin=True)))
    assert not made.closed_api
    assert not (await client.read()).rules.keys_required


async def test_what_makes_no_sense_is_refused(client: AccountsClient, bus: NatsBus) -> None:
    with pytest.raises(InvalidRequest, match=r"Mars/Olympus.*time zone"):
        await client.put(replace(ACME, time_zone="Mars/Olympus"))
    with pytest.raises(InvalidRequest, match="time zone"):
        await client.put(replace(ACME, time_zone="../../etc/passwd"))
    with pytest.raises(AccountNotFound, match="ryz tenants create acme"):
        await client.create_key(WANTED)
    with pytest.raises(AccountNotFound, match="no tenant acme"):
        await client.remove(ACME.name)
    for change in (AccountChange(actor="x"), AccountChange(actor="x", put=ACME, remove="rules")):
        with pytest.raises(InvalidRequest, match="either"):
            await call(bus, subjects.ACCOUNT_CHANGE, change, AccountStored, timeout_s=PATIENCE_S)
    await client.put(ACME)
    made = await client.create_key(WANTED)
    with pytest.raises(InvalidRequest, match="keeps its tenant"):
        await client.put(replace(made.record, tenant="default"))
    with pytest.raises(InvalidRequest, match="keeps its tenant"):
        await client.put(replace(made.record, digest=bytes(32)))
    with pytest.raises(Conflict, match="1 key: revoke"):
        await client.remove(ACME.name)
    assert await client.delete_tenant("acme", with_keys=True) == [made.record.key_id]
    assert (await client.read()).tenants() == []


async def test_a_key_that_is_not_there_is_named_as_it_was_given(client: AccountsClient) -> None:
    with pytest.raises(AccountNotFound, match=r"no key or bus user sk-ryz-nosuch$"):
        await client.find_key("sk-ryz-nosuch")
    with pytest.raises(AccountNotFound, match=r"no key or bus user nosuch$"):
        await client.find_key("nosuch")
    other = new_key()
    with pytest.raises(AccountNotFound, match=f"no key or bus user sk-ryz-{other.key_id}$"):
        await client.find_key(other.text)


async def test_a_change_by_an_old_revision_is_a_conflict(client: AccountsClient) -> None:
    first = await client.put(ACME, expected=0)
    with pytest.raises(Conflict, match="tenant acme already"):
        await client.put(ACME, expected=0)
    second = await client.put(replace(ACME, weight=2.0), expected=first.revision)
    with pytest.raises(Conflict, match="has changed"):
        await client.put(replace(ACME, weight=3.0), expected=first.revision)
    again = await client.put(replace(ACME, weight=2.0, created_s=5), expected=second.revision)
    assert again == second, "the same again changes nothing"


async def test_a_rotated_key_stays_valid_for_a_while(client: AccountsClient) -> None:
    await client.put(ACME)
    first = await client.create_key(replace(WANTED, scopes=Scopes(models=["demo"]), limits=Limits(running=1)))
    second = await client.rotate_key(first.record.key_id, 3600)
    assert (second.record.scopes, second.record.limits) == (first.record.scopes, first.record.limits)
    register = await client.read()
    old = register.key(first.record.key_id)
    assert old is not None
    assert abs(old.expires_s - time.time() - 3600) < PATIENCE_S
    third = await client.rotate_key(second.record.key_id, 0)
    assert (await client.read()).key(second.record.key_id) is None
    assert third.record.expires_s == 0
    with pytest.raises(AccountNotFound):
        await client.rotate_key("0" * 12, 0)


async def test_the_audit_log_says_who_changed_what_and_no_digest(
    client: AccountsClient, bus: NatsBus
) -> None:
    await client.put(ACME)
    made = await AccountsClient(bus, "abcdefghijkl").create_key(WANTED)
    await client.put(PriceRecord(model="demo", prompt=150_000))
    await client.remove(made.record.name)
    entries = await client.audit()
    assert [(entry.actor, entry.action, entry.subject) for entry in entries] == [
        ("local", "remove", made.record.name),
        ("local", "put", "price.demo"),
        ("abcdefghijkl", "put", made.record.name),
        ("abcdefghijkl", "put", "rules"),
        ("local", "put", "tenant.acme"),
    ]
    assert entries[0].tenant == entries[2].tenant == entries[4].tenant == "acme"
    assert "digest" not in entries[2].detail
    assert '"label":"ci"' in entries[2].detail
    assert all(entry.number for entry in entries)
    assert await client.audit(before=entries[1].number, count=2) == entries[2:4]


async def test_changes_of_two_replicas_are_in_one_order(broker: NatsServer, bus: NatsBus) -> None:
    news = list[AccountChanged]()
    listener = Endpoint(bus).listener(AccountChanged, lambda one, _: news.append(one))
    await bus.subscribe(subjects.ACCOUNT_CHANGED, listener)
    client = AccountsClient(bus, "local")
    async with account_replica(broker.url), account_replica(broker.url):
        await bus.flush()
        made = await asyncio.gather(*(client.put(TenantRecord(tenant=f"t{n}")) for n in range(40)))
        assert sorted(stored.revision for stored in made) == list(range(1, 41))
        assert len((await client.read()).tenants()) == 40
        await until(lambda: len(news) == 40)
    assert sorted((one.before, one.version) for one in news) == [(n, n + 1) for n in range(40)]
    async with account_replica(broker.url):
        assert len((await client.read()).tenants()) == 40, "a new replica has all of them"


async def test_of_many_changes_by_one_revision_one_is_done(broker: NatsServer, bus: NatsBus) -> None:
    client = AccountsClient(bus, "local")
    async with account_replica(broker.url), account_replica(broker.url):
        first = await client.put(ACME)
        results = await asyncio.gather(
            *(client.put(replace(ACME, weight=2.0 + n), expected=first.revision) for n in range(20)),
            return_exceptions=True,
        )
        done = [one for one in results if not isinstance(one, BaseException)]
        assert len(done) == 1
        assert all(isinstance(one, Conflict) for one in results if isinstance(one, BaseException))
        assert (await client.read()).stored(ACME.name) == done[0]


async def test_what_was_answered_is_there_after_kills_of_the_broker(broker: NatsServer, bus: NatsBus) -> None:
    client, answered, ended = AccountsClient(bus, "local"), set[str](), False

    async def write(writer: int) -> None:
        number = 0
        while not ended:
            record = TenantRecord(tenant=f"w{writer}-{number}")
            with suppress(Unavailable):
                await client.put(record)
                answered.add(record.tenant)
                number += 1

    async with account_replica(broker.url), account_replica(broker.url):
        writing = [asyncio.create_task(write(writer)) for writer in range(4)]
        for _ in range(3):
            before = len(answered)
            await until(lambda before=before: len(answered) > before + 20)  # type: ignore[misc]
            broker.stop(kill=True)
            broker.start()
        before = len(answered)
        await until(lambda: len(answered) > before + 20)
        ended = True
        await asyncio.gather(*writing)
        register = await client.read()
        assert answered <= {one.tenant for one in register.tenants()}
        revisions = [found.revision for one in register.tenants() if (found := register.stored(one.name))]
        assert len(set(revisions)) == len(revisions)
        entries, before = set[str](), 0
        while page := await client.audit(before=before, count=1000):
            entries |= {entry.subject for entry in page}
            before = page[-1].number
        assert {one.name for one in register.tenants()} <= entries, "each change has its entry"


async def test_a_stream_that_was_emptied_is_read_anew(broker: NatsServer, client: AccountsClient) -> None:
    await client.put(ACME)
    broker.stop()
    shutil.rmtree(broker.command[-1])
    broker.start()
    register = AccountRegister()
    while not register.is_current:  # what was asked when the connection was lost has no answer
        with suppress(Unavailable):
            register = await client.read()
    assert (register.version, len(register)) == (0, 0)
    assert (await client.put(ACME, expected=0)).revision == 1


async def test_without_jetstream_the_remedy_is_named(nats_url: str, nats_bus: NatsBus) -> None:
    client = AccountsClient(nats_bus, "local")
    async with account_replica(nats_url):
        with pytest.raises(Unavailable, match=r"JetStream.*store_dir") as refused:
            await client.put(ACME)
        assert refused.value.data["reason"] == "no_jetstream"
        with pytest.raises(Unavailable, match="JetStream"):
            await client.read()
        with pytest.raises(Unavailable, match="JetStream"):
            await client.audit()


async def test_without_the_service_it_is_named(nats_bus: NatsBus) -> None:
    with pytest.raises(Unavailable, match="does not run"):
        await AccountsClient(nats_bus, "local").put(ACME)


async def test_the_service_answers_these_calls(broker: NatsServer, bus: NatsBus, redis_url: str) -> None:
    client = AccountsClient(bus, "local")
    async with running(broker.url, redis_url):
        await client.put(ACME)
        assert (await client.read()).tenants()[0].limits == ACME.limits


async def test_many_keys_are_read_by_pages(client: AccountsClient) -> None:
    await client.put(ACME)
    models = [f"m{number}" * 8 for number in range(120)]
    for _ in range(220):
        with suppress(RyzError):
            await client.create_key(replace(WANTED, scopes=Scopes(models=models)))
    assert len((await client.read()).keys()) == 220
