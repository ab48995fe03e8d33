"""The session store of `ryz up --redis-dir`, which can be stopped, killed and started again."""

import subprocess
import time
from pathlib import Path
from typing import Self

import redis

from cli.stack.host.private import make_private_dir, write_private
from cli.stack.servers.redis_server import Store, find_redis, new_store_passwords
from tests.kits.waiting import PATIENCE_S

ADMIN = "admin"
OLD_DEFAULT_USER, NEW_DEFAULT_USER = "user default off\n", "user default off ~* &* +@all\n"


class KeptStore:
    """A Redis process with an append-only file, and the user `admin` beside its own.

    Args:
        folder: Directory of its configuration, socket and log.
        disk: Directory of its append-only file.
        binary: The server; empty: the one that `ryz up` takes.
        old_acl: With the ACL of releases whose Redis refused its own log.
    """

    def __init__(self, folder: Path, disk: Path, binary: str = "", *, old_acl: bool = False) -> None:
        self.disk = disk
        self.log = folder / "redis.log"
        self._binary = binary or find_redis()
        self._old_acl = old_acl
        self._store = Store(
            name="redis", folder=folder, socket=folder / "run" / "redis.sock", memory_bytes=256 * 2**20,
            passwords=new_store_passwords(["kvstate"]), persist_dir=disk,
        )  # fmt: skip
        make_private_dir(self._store.socket.parent)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the KV state service."""
        return self._store.url("kvstate")

    @property
    def files(self) -> list[Path]:
        """The files of its append-only log, the newest last."""
        return sorted(self.disk.glob("appendonlydir/*.aof"))

    def connect(self) -> redis.Redis:
        """Connects as a user with all rights."""
        return redis.Redis(unix_socket_path=str(self._store.socket), username=ADMIN, password=ADMIN)

    def start(self) -> Self:
        """Returns when it has read its log."""
        for path, text in self._store.files().items():
            more = f"user {ADMIN} on >{ADMIN} ~* &* +@all\n" if path.suffix == ".acl" else ""
            given = text.replace(NEW_DEFAULT_USER, OLD_DEFAULT_USER) if self._old_acl else text
            write_private(path, given + more)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([self._binary, str(self._store.config)], stdout=log, stderr=log)
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            try:
                with self.connect() as client:
                    client.ping()
                return self
            except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                time.sleep(0.02)
        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self, *, kill: bool = False) -> None:
        """Ends it by SIGTERM or SIGKILL; does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill() if kill else process.terminate()
            process.wait(PATIENCE_S)

    def rewrite(self) -> None:
        """Has it rewrite its log, and waits for the end of it."""
        with self.connect() as client:
            before = int(client.info("persistence")["aof_rewrites"])
            client.execute_command("BGREWRITEAOF")
            give_up = time.monotonic() + PATIENCE_S
            while (
                int(client.info("persistence")["aof_rewrites"]) == before
                or client.info("persistence")["aof_rewrite_in_progress"]
            ):
                assert time.monotonic() < give_up
                time.sleep(0.02)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(kill=True)
