"""A full disk of the session store, on a real, tiny file system: it is reported, and commits resume later."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.kvstate.redis.store_errors import StoreUnwritable
from shared.bus.nats import NatsBus
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import RyzError, Unavailable
from shared.lifecycle import Service
from tests.kits.kvstate.kept_store import KeptStore
from tests.kits.kvstate.service import new_tenant, record, running
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a tiny file system")
TEXT = "x" * 60_000


@contextmanager
def tiny_disk(path: Path) -> Iterator[Path]:
    """A file system of two megabytes, half of which can be freed."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        (path / "filler").write_bytes(bytes(2**20))
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def fill_store(sessions: SessionsClient, tenant: str) -> tuple[int, RyzError]:
    """Commits records until one is refused; about 17 fill a megabyte.

    Returns:
        The number of the last record that was accepted, and the refusal.
    """
    for number in range(60):
        try:
            await sessions.commit([record(tenant, f"s{number}", text=TEXT)])
        except Unavailable as error:
            return number - 1, error
    raise AssertionError("60 records of 60 kB fit on two megabytes")


def writable(service: Service) -> float | None:
    return service.registry.get_sample_value("ryz_kvstate_store_writable")


async def test_a_full_disk_is_named_and_mends_itself(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    tenant, sessions = new_tenant(), SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    with tiny_disk(tmp_path / "disk") as disk, KeptStore(tmp_path, disk) as store:
        async with running(nats_url, store.url) as service:
            await sessions.commit([record(tenant, "kept")])
            assert (writable(service), service.status().detail["store"]) == (1, "up")
            number, refused = await fill_store(sessions, tenant)
            assert refused.data["reason"] == "disk_full"
            assert "No space left on device" in refused.message
            assert (writable(service), service.status().detail["store"]) == (0, "disk full")
            # no record was lost, and reads continue
            assert (await sessions.get(tenant, "kept")).version == 1
            assert len((await sessions.list(tenant)).sessions) > 5
            with pytest.raises(Unavailable) as pinned:
                await sessions.pin(tenant, "kept", "g1")
            assert pinned.value.data["reason"] == "disk_full"
            stored = {one.session_id for one in (await sessions.list(tenant)).sessions}
        store.stop(kill=True)
        (disk / "filler").unlink()
        store.start()
        async with running(nats_url, store.url) as service:
            found = {one.session_id for one in (await sessions.list(tenant)).sessions}
            # Redis answers the write that finds the disk full, and refuses those after it
            assert stored - {f"s{number}"} <= found
            await sessions.commit([record(tenant, "kept", version=2)])
            assert (await sessions.get(tenant, "kept")).version == 2


async def test_a_store_goes_on_when_there_is_room_again(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    tenant, sessions = new_tenant(), SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    with tiny_disk(tmp_path / "disk") as disk, KeptStore(tmp_path, disk) as store:
        async with running(nats_url, store.url) as service:
            await sessions.commit([record(tenant, "kept")])
            await fill_store(sessions, tenant)
            await until(lambda: writable(service) == 0)
            (disk / "filler").unlink()
            await until(lambda: writable(service) == 1)
            assert service.status().detail["store"] == "up"
            await sessions.commit([record(tenant, "kept", version=2)])
            assert (await sessions.get(tenant, "kept")).version == 2


def test_the_reason_tells_a_full_disk_from_another_trouble() -> None:
    full = StoreUnwritable("session store", "Errors writing to the AOF file: No space left on device")
    assert full.data["reason"] == "disk_full"
    broken = StoreUnwritable("session store", "Errors writing to the AOF file: Input/output error")
    assert broken.data["reason"] == "session_store"
    assert "Input/output error" in broken.message
