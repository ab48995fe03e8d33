"""What the session store of `ryz up --redis-dir` has after each kind of restart: all that it stored."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.kvstate.redis.store_starts import StoreContents
from shared import subjects
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.client.calls.register_sync import read_register
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import InvalidRequest, Unavailable
from shared.messages import Adapter, AdapterDelete, AdapterPut, AdapterStored
from tests.kits.kvstate.kept_records import KeptRecords, read_records, store_records
from tests.kits.kvstate.kept_store import KeptStore
from tests.kits.kvstate.service import new_tenant, record, running, value
from tests.kits.waiting import PATIENCE_S, until

PER_TENANT = 500  # of two tenants
HELD_BACK_S = 2.0  # `appendfsync everysec` in Redis's documentation, and its source: flushAppendOnlyFile


SERVERS = [name for name in ("redis-server", "valkey-server") if name == "redis-server" or shutil.which(name)]


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeptStore]:
    """A store with an empty directory; also on a Valkey if there is one on PATH."""
    binary = shutil.which("valkey-server") if request.param == "valkey-server" else ""
    disk = tmp_path / "disk"
    disk.mkdir()
    with KeptStore(tmp_path, disk, binary or "") as started:
        yield started


def counted(kept: KeptRecords) -> StoreContents:
    return StoreContents(len(kept.sessions), len(kept.pins), len(kept.responses), len(kept.deleted))


async def check_reported_contents(
    nats_url: str, nats_bus: NatsBus, store: KeptStore, kept: KeptRecords
) -> None:
    """A new replica of the service finds and tells all of it."""
    async with running(nats_url, store.url) as service:
        assert await read_records(nats_bus, kept) == kept
        expected = counted(kept)
        await until(lambda: value(service, "store_read", kind="sessions") == expected.sessions)
        assert value(service, "store_read", kind="pins") == expected.pins
        assert value(service, "store_read", kind="responses") == expected.responses
        assert value(service, "store_read", kind="tombstones") == expected.tombstones
        assert value(service, "store_refused_commands") == 0
        assert service.status().detail["store_read"] == {
            "sessions": expected.sessions,
            "pins": expected.pins,
            "responses": expected.responses,
            "tombstones": expected.tombstones,
        }


async def test_a_thousand_sessions_are_equal_after_restarts(
    nats_url: str, nats_bus: NatsBus, store: KeptStore
) -> None:
    async with running(nats_url, store.url):
        kept = await store_records(nats_bus, [new_tenant(), new_tenant()], PER_TENANT)
        assert await read_records(nats_bus, kept) == kept
    for how in ("SIGTERM", "SIGKILL", "rewrite", "rewrite and SIGKILL"):
        if "rewrite" in how:
            store.rewrite()
        store.stop(kill="SIGKILL" in how)
        store.start()
        await check_reported_contents(nats_url, nats_bus, store, kept)


async def test_a_kill_in_mid_write_costs_two_seconds_at_most(
    nats_url: str, nats_bus: NatsBus, store: KeptStore
) -> None:
    """Redis holds writes back for up to two seconds while the disk is busy with the ones before."""
    tenant, sessions = new_tenant(), SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    times = list[tuple[float, str, int]]()
    loop = asyncio.get_running_loop()

    async def write(number: int) -> None:
        for version in range(1, 10_000):
            await sessions.commit([record(tenant, f"s{number}", version, text="x" * 5000)])
            times.append((loop.time(), f"s{number}", version))

    async with running(nats_url, store.url):
        writers = [asyncio.create_task(write(number)) for number in range(8)]
        await until(lambda: bool(times) and times[-1][0] - times[0][0] > HELD_BACK_S + 0.5)
        killed_at = loop.time()
        store.stop(kill=True)
        for task in writers:
            with suppress(Unavailable):
                await task
        store.start()
        stored = {name: version for at, name, version in times if at < killed_at - HELD_BACK_S}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(Unavailable):
                    found = {name: await sessions.get(tenant, name) for name in stored}
                    break
                await asyncio.sleep(0.05)
    assert len(found) == 8
    assert all(found[name].version >= version for name, version in stored.items())
    assert all(one.messages[0].content == "x" * 5000 for one in found.values()), "no record is torn"


async def test_a_cut_file_costs_the_last_write_alone(
    nats_url: str, nats_bus: NatsBus, store: KeptStore
) -> None:
    tenant = new_tenant()
    async with running(nats_url, store.url):
        kept = await store_records(nats_bus, [tenant], 20)
        await SessionsClient(nats_bus).commit([record(tenant, "last", text="x" * 2000)])
    store.stop()  # a killed one may have held its last writes back, which are more than are cut
    newest = store.files[-1]
    os.truncate(newest, newest.stat().st_size - 700)
    store.start()
    await check_reported_contents(nats_url, nats_bus, store, kept)


async def test_a_store_that_refused_its_log_ends_the_start(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with KeptStore(tmp_path, disk, old_acl=True) as store:
        async with running(nats_url, store.url):
            await store_records(nats_bus, [new_tenant()], 5)
        store.stop()
        store.start()
        with pytest.raises(
            InvalidRequest, match=r"refused \d+ commands of its log.*user default off ~\* &\* \+@all"
        ):
            async with running(nats_url, store.url):
                pass


async def test_a_running_service_tells_of_a_store_that_refused_its_log(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with KeptStore(tmp_path, disk, old_acl=True) as store:
        async with running(nats_url, store.url) as service:
            await store_records(nats_bus, [new_tenant()], 5)
            await until(lambda: service.status().detail["store_read"] is not None)
            store.stop()
            store.start()
            await until(lambda: value(service, "store_refused_commands") > 0)
            assert service.status().detail["store_refused_commands"] > 0
            assert service.exit_code == 0, "turns go on"


async def test_the_register_of_adapters_is_equal_after_restarts(
    nats_url: str, nats_bus: NatsBus, store: KeptStore
) -> None:
    put = [
        Adapter(name=f"a{number}", base="demo", source="/x", fingerprint="a" * 32, rank=8, num_bytes=number)
        for number in range(50)
    ]
    async with running(nats_url, store.url):
        for adapter in put:
            asked = AdapterPut(adapter=adapter)
            await call(nats_bus, subjects.ADAPTER_PUT, asked, AdapterStored, timeout_s=PATIENCE_S)
        gone = AdapterDelete(base="demo", name="a7")
        await call(nats_bus, subjects.ADAPTER_DELETE, gone, AdapterStored, timeout_s=PATIENCE_S)
        kept = await read_register(nats_bus, timeout_s=PATIENCE_S)
    assert len(kept[0]) == 49
    for kill in (False, True):
        store.stop(kill=kill)
        store.start()
        async with running(nats_url, store.url):
            assert await read_register(nats_bus, timeout_s=PATIENCE_S) == kept
