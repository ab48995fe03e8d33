"""`deploy/redis-start.sh` with a real Redis: users from variables, hashes on disk, never without a user."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from cli.sessions.recovery.old_logs import replace_log
from cli.stack.servers.redis_server import find_redis
from tests.kits.servers import ROOT, ServerProcess, free_port
from tests.kits.waiting import wait_for
from tools.docs.redis_acl import TEMPLATE

SCRIPT = ROOT / "deploy" / "redis-start.sh"
WORDS = {"RYZ_REDIS_KVSTATE_PASSWORD": "pKvstate1", "RYZ_REDIS_WORKER_PASSWORD": "pWorker2"}


def environment(folder: Path, **words: str) -> dict[str, str]:
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (binaries / "redis-server").symlink_to(find_redis())
    return {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "RYZ_REDIS_ACL_TEMPLATE": str(TEMPLATE),
        "RYZ_REDIS_ACL_FILE": str(folder / "users.acl"),
        **words,
    }


def start(folder: Path, *options: str, **words: str) -> ServerProcess:
    port = free_port()
    command = [
        "sh",
        str(SCRIPT),
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--save",
        "",
        "--dir",
        str(folder),
        *options,
    ]
    server = ServerProcess(command, port, environment(folder, **words))
    server.start()
    return server


def client(server: ServerProcess, user: str, word: str) -> redis.Redis:
    return redis.Redis.from_url(f"redis://{user}:{word}@127.0.0.1:{server.port}/0", socket_timeout=5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = start(tmp_path, **WORDS)
    yield running
    running.stop()


def test_each_user_has_its_password_and_the_default_one_is_off(server: ServerProcess) -> None:
    assert client(server, "kvstate", "pKvstate1").hset("ryz:x", "a", "1") == 1
    assert client(server, "worker", "pWorker2").ping()
    for user, word in (("kvstate", "pWorker2"), ("worker", ""), ("default", ""), ("", "")):
        with pytest.raises(redis.exceptions.AuthenticationError):
            client(server, user, word).ping()
    with pytest.raises(redis.exceptions.NoPermissionError):
        client(server, "worker", "pWorker2").set("ryz:x", "1")


def test_passwords_are_neither_on_disk_nor_in_what_redis_runs_with(
    server: ServerProcess, tmp_path: Path
) -> None:
    acl = tmp_path / "users.acl"
    assert stat.S_IMODE(acl.stat().st_mode) == 0o600
    assert server.process is not None
    process = Path("/proc") / str(server.process.pid)
    assert "redis-server" in (process / "cmdline").read_text()
    for text in (acl.read_text(), (process / "cmdline").read_text(), (process / "environ").read_text()):
        assert not any(word in text for word in WORDS.values())


def test_a_user_without_a_password_does_not_exist(tmp_path: Path) -> None:
    server = start(tmp_path, RYZ_REDIS_KVSTATE_PASSWORD="pKvstate1")
    try:
        assert client(server, "kvstate", "pKvstate1").ping()
        with pytest.raises(redis.exceptions.AuthenticationError):
            client(server, "worker", "pWorker2").ping()
    finally:
        server.stop()


@pytest.mark.parametrize("words", [{}, {"RYZ_REDIS_KVSTATE_PASSWORD": ""}])
def test_without_any_password_it_does_not_start(tmp_path: Path, words: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", str(SCRIPT)], env=environment(tmp_path, **words), capture_output=True, text=True, timeout=20,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "RYZ_REDIS_<USER>_PASSWORD" in done.stderr


PERSISTENT = ("--appendonly", "yes", "--appendfsync", "everysec")


def write_turns(server: ServerProcess, names: list[str]) -> None:
    """Two writes of a script are a transaction in Redis's log."""
    store = client(server, "kvstate", "pKvstate1")
    wait_for(lambda: not _loads(store), "the store has read its log")
    write = store.register_script(
        "redis.call('HSET', KEYS[1], 'r', 'text') redis.call('PEXPIRE', KEYS[1], 100000)"
    )
    for name in names:
        write([f"ryz:session:acme:{name}"])


def stored(server: ServerProcess) -> set[bytes]:
    store = client(server, "kvstate", "pKvstate1")
    wait_for(lambda: not _loads(store), "the store has read its log")
    return set(store.scan_iter("ryz:session:*"))


def _loads(store: redis.Redis) -> bool:
    try:
        return not store.ping()
    except redis.BusyLoadingError:
        return True


@pytest.mark.parametrize("kill", [False, True])
def test_what_was_stored_is_there_after_each_restart(tmp_path: Path, kill: bool) -> None:
    names = list[str]()
    for run in range(3):
        server = start(tmp_path, *PERSISTENT, **WORDS)
        try:
            assert stored(server) == {f"ryz:session:acme:{name}".encode() for name in names}
            made = [f"s{run}-{number}" for number in range(20)]
            write_turns(server, made)
            names += made
        finally:
            server.stop(kill=kill)


def test_the_log_of_an_earlier_release_waits_for_a_decision(tmp_path: Path) -> None:
    for _ in range(2):
        server = start(tmp_path, *PERSISTENT, **WORDS)
        write_turns(server, ["s"])
        server.stop()
    (tmp_path / "ryz-sessions").unlink()  # earlier releases write no such file
    done = subprocess.run(
        ["sh", str(SCRIPT), "--dir", str(tmp_path)], env=environment(tmp_path, **WORDS), capture_output=True,
        text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "ryz sessions recover /sessions" in done.stderr
    assert replace_log(tmp_path, restore=True).is_dir()
    server = start(tmp_path, *PERSISTENT, **WORDS)
    assert stored(server) == {b"ryz:session:acme:s"}
    server.stop()


def test_a_log_of_one_start_is_used(tmp_path: Path) -> None:
    server = start(tmp_path, *PERSISTENT, **WORDS)
    write_turns(server, ["s"])
    server.stop()
    (tmp_path / "ryz-sessions").unlink()
    server = start(tmp_path, *PERSISTENT, **WORDS)
    assert stored(server) == {b"ryz:session:acme:s"}
    server.stop()
