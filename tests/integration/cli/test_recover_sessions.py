"""`ryz sessions recover` on logs that a Redis with the ACL of earlier releases wrote and refused to read."""

import json
import os
from pathlib import Path

import msgpack
import pytest

from cli.console import CommandError
from cli.sessions.recovery.append_only_log import DamagedLog, find_log, read_blocks
from cli.sessions.recovery.old_logs import examine, is_accepted, replace_log
from cli.sessions.recovery.stored_sessions import EntryKey as Stored
from cli.sessions.recovery.stored_sessions import SessionOutline, read_stored
from cli.stack.servers.redis_dir import make_redis_dir, require_accepted
from services.kvstate.domain import keys
from shared.bus.nats import NatsBus
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import SessionNotFound
from tests.kits.e2e.stack import ryz
from tests.kits.kvstate.kept_records import EntryKey, KeptRecords, read_records, store_records
from tests.kits.kvstate.kept_store import KeptStore
from tests.kits.kvstate.service import record, running
from tests.kits.waiting import PATIENCE_S


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return make_redis_dir(tmp_path / "kept")


async def write_old_log(
    nats_url: str, bus: NatsBus, folder: Path, disk: Path, *, rewrite: bool = False
) -> KeptRecords:
    """Two runs of an earlier release; returns what is to be there after the recovery.

    The second run begins without the first one's sessions. It deletes `twice` after beginning it anew, and
    begins `s1` anew.
    """
    sessions = SessionsClient(bus, timeout_s=PATIENCE_S)
    with KeptStore(folder, disk, old_acl=True) as store:
        async with running(nats_url, store.url):
            kept = await store_records(bus, ["acme", "globex"], 20)
            await sessions.commit([record("acme", "twice", 7)])
        store.stop()  # a killed one may have held its last writes back, for a disk that is busy
    with KeptStore(folder, disk, old_acl=True) as store:
        with store.connect() as admin:
            admin.config_resetstat()  # else the service refuses this store
        async with running(nats_url, store.url):
            with pytest.raises(SessionNotFound):
                await sessions.get("acme", "s0")
            await sessions.commit(
                [record("acme", "twice"), record("acme", "s1", text="anew"), record("acme", "new")]
            )
            await sessions.delete("acme", "twice")
            for name in ("s1", "new"):
                kept.sessions[EntryKey("acme", name)] = await sessions.get("acme", name)
            kept.deleted.add(EntryKey("acme", "twice"))
            if rewrite:
                store.rewrite()
        store.stop()
    return kept


async def test_what_was_stored_is_shown_and_comes_back(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path
) -> None:
    kept = await write_old_log(nats_url, nats_bus, tmp_path, disk)
    with pytest.raises(CommandError, match=r"35 sessions, 10 pins and 8 responses of 2 tenants.*--restore"):
        require_accepted(disk)
    shown = ryz("sessions", "recover", str(disk), cwd=tmp_path)
    assert shown.returncode == 0
    assert "On disk and not read back: 35 sessions, 10 pins and 8 responses of 2 tenants." in shown.stdout
    assert "In use: 2 sessions, 0 pins and 0 responses of 1 tenant" in shown.stdout
    output = json.loads(ryz("sessions", "recover", str(disk), "--json", cwd=tmp_path).stdout)
    names = {(one["tenant"], one["session_id"]) for one in output["missing"]["sessions"]}
    assert names == {key for key in kept.sessions if key not in {("acme", "s1"), ("acme", "new")}}
    assert ("acme", "twice") not in names
    assert not is_accepted(disk), "nothing was changed"

    done = ryz("sessions", "recover", str(disk), "--restore", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "They are back." in done.stdout
    assert any(name.startswith("appendonlydir.before-") for name in os.listdir(disk))
    require_accepted(disk)
    with KeptStore(tmp_path, disk) as store:
        async with running(nats_url, store.url):
            assert await read_records(nats_bus, kept) == kept
            await SessionsClient(nats_bus).commit([record("acme", "s2", 9)])
        assert_sums(store)
    assert "There is no" not in ryz("sessions", "recover", str(disk), cwd=tmp_path).stdout


def assert_sums(store: KeptStore) -> None:
    """The bytes that quotas count are those of the sessions and responses that are there."""
    with store.connect() as admin:
        total = 0
        for tenant in ("acme", "globex"):
            for prefix in ("session-sizes", "response-sizes"):
                sizes = admin.hgetall(f"ryz:{prefix}:{tenant}")
                assert int(sizes.pop(b"")) == sum(map(int, sizes.values()))
                total += sum(map(int, sizes.values())) if prefix == "session-sizes" else 0
        assert int(admin.hget("ryz:session-sizes:", "") or 0) == total


async def test_what_was_stored_can_be_left_out(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path
) -> None:
    kept = await write_old_log(nats_url, nats_bus, tmp_path, disk)
    assert ryz("sessions", "recover", str(disk), "--discard", cwd=tmp_path).returncode == 0
    require_accepted(disk)
    with KeptStore(tmp_path, disk) as store:
        async with running(nats_url, store.url):
            found = await read_records(nats_bus, kept)
    assert set(found.sessions) == {("acme", "s1"), ("acme", "new")}


async def test_what_a_rewrite_has_dropped_is_said_to_be_gone(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await write_old_log(nats_url, nats_bus, tmp_path, disk, rewrite=True)
    found = examine(disk)
    assert found.missing.is_empty
    require_accepted(disk)
    assert "What had not been read back by then is gone." in capsys.readouterr().out
    assert is_accepted(disk)


async def test_a_log_of_one_run_is_simply_used(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path
) -> None:
    with KeptStore(tmp_path, disk, old_acl=True) as store:
        async with running(nats_url, store.url):
            kept = await store_records(nats_bus, ["acme"], 5)
        store.stop()
    require_accepted(disk)
    with KeptStore(tmp_path, disk) as store:
        async with running(nats_url, store.url):
            assert await read_records(nats_bus, kept) == kept


async def test_a_log_in_use_is_not_replaced(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path
) -> None:
    await write_old_log(nats_url, nats_bus, tmp_path, disk)
    with KeptStore(tmp_path, disk), pytest.raises(CommandError, match="stop the stack first"):
        replace_log(disk, restore=True)


def cut_newest(disk: Path, num_bytes: int) -> None:
    log = find_log(disk)
    assert log
    os.truncate(log.increments[-1], log.increments[-1].stat().st_size - num_bytes)


async def test_a_cut_log_is_read_up_to_the_cut(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path, disk: Path
) -> None:
    await write_old_log(nats_url, nats_bus, tmp_path, disk)
    cut_newest(disk, 11)
    assert Stored("acme", "s0") in examine(disk).missing.sessions


def test_garbage_in_a_log_is_named_with_its_position(disk: Path) -> None:
    folder = disk / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    file = folder / "appendonly.aof.1.incr.aof"
    file.write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\nnonsense\r\n")
    with pytest.raises(DamagedLog, match=f"{file} is damaged before byte 33"):
        list(read_blocks(file))
    with pytest.raises(CommandError, match=r"redis-check-aof.*Nothing was changed"):
        examine(disk)
    file.unlink()
    with pytest.raises(CommandError, match="which is not there"):
        examine(disk)


def test_an_empty_directory_needs_no_decision(disk: Path) -> None:
    assert find_log(disk) is None
    require_accepted(disk)
    assert is_accepted(disk)


def test_restore_and_discard_exclude_each_other(disk: Path, tmp_path: Path) -> None:
    done = ryz("sessions", "recover", str(disk), "--restore", "--discard", cwd=tmp_path)
    assert done.returncode == 2
    assert "one of `--restore` and `--discard`" in done.stderr


def test_summaries_that_this_release_cannot_read_are_found_as_well(tmp_path: Path, disk: Path) -> None:
    summaries = {
        "older": {"turns": 3, "num_tokens": 70, "updated_ms": 5},  # lacks what `SessionSummary` demands
        "newer": {"turns": "many", "num_tokens": 80, "updated_ms": 6, "words": {1: [2.5, b"x", None]}},
    }
    with KeptStore(tmp_path, disk) as store, store.connect() as admin:
        for name, summary in summaries.items():
            admin.hset(keys.session("acme", name), "s", msgpack.packb(summary))
        admin.hset(keys.session("acme", "damaged"), "s", b"\xc1")
        admin.hset(keys.session("acme", "a list"), "s", msgpack.packb([1]))
        found = read_stored(admin).sessions
    assert found == {
        Stored("acme", "older"): SessionOutline(3, 70, 5),
        Stored("acme", "newer"): SessionOutline(0, 80, 6),
        Stored("acme", "damaged"): SessionOutline(),
        Stored("acme", "a list"): SessionOutline(),
    }
