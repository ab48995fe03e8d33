"""The faults of the failure table (docs/failures.md), each with the alert that tells of it.

A fault is a context manager: entering makes it, leaving mends it.
"""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx
import psutil
import pytest
import redis

from shared import subjects
from shared.accounts.keys import new_key
from shared.bus.nats import NatsBus
from shared.kv_hash import PREFIX_PATTERN
from tests.kits.alerts.unread_accounts import unread_accounts
from tests.kits.alerts.watched_stack import WatchedStack
from tests.kits.e2e.stack import ROOT

Fault = Callable[[WatchedStack], AbstractContextManager[None]]
_ATTACH, _DETACH, _ANY_CHILD = 16, 17, 0x40000000  # of ptrace(2), and __WALL of wait(2)
WITHIN_S = 15.0
OLD_S = 60.0  # of a copy of tenants and keys, from which there is an alert
JSON = {"content-type": "application/json"}
LONG_TEXT = "Tell me a long story about lists, numbers, names, colours, strings and classes. " * 4


@dataclass(frozen=True, slots=True)
class AlertCase:
    """A row of the failure table.

    Attributes:
        row: What fails.
        alert: The one alert that it raises.
        fault: Makes it.
        within_s: How soon the alert fires.
    """

    row: str
    alert: str
    fault: Fault
    within_s: float = WITHIN_S


def prompt(text: str) -> dict[str, object]:
    """The body of a request for a few tokens."""
    return {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}


def killed(name: str) -> Fault:
    """kill -9 of a service of the stack."""

    @contextmanager
    def fault(world: WatchedStack) -> Iterator[None]:
        world.kill(name)
        yield

    return fault


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT in the end to those that live."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)


def frozen_leader(world: WatchedStack) -> AbstractContextManager[None]:
    return frozen(world.leaders()[0])


@contextmanager
def hung_loop(world: WatchedStack) -> Iterator[None]:
    """The main thread of a leader stands still, and its other threads go on."""
    pid, libc = world.leaders()[0], ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(_ATTACH, pid, None, None):
        pytest.skip(f"ptrace of another process is not allowed here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, _ANY_CHILD)
    try:
        yield
    finally:
        libc.ptrace(_DETACH, pid, None, None)


def all_frozen(world: WatchedStack) -> AbstractContextManager[None]:
    return frozen(*world.leaders())


def frozen_rank(world: WatchedStack) -> AbstractContextManager[None]:
    return frozen(world.rank())


@contextmanager
def killed_rank(world: WatchedStack) -> Iterator[None]:
    os.kill(world.rank(), signal.SIGKILL)
    yield


@contextmanager
def rank_without_memory(world: WatchedStack) -> Iterator[None]:
    """The kernel gives a rank no more memory, and long prompts need some."""
    psutil.Process(world.rank()).rlimit(psutil.RLIMIT_AS, (2**20, psutil.RLIM_INFINITY))
    for number in range(4):
        httpx.post(
            f"{world.stack.state.url}/v1/chat/completions",
            json=prompt(f"{number} {8 * LONG_TEXT}"),
            timeout=20,
        )
    yield


@contextmanager
def cut_network(world: WatchedStack) -> Iterator[None]:
    world.proxy.refuse()
    try:
        yield
    finally:
        world.proxy.resume()


@contextmanager
def stalled_network(world: WatchedStack) -> Iterator[None]:
    world.proxy.stall()
    try:
        yield
    finally:
        world.proxy.resume()


@contextmanager
def breaking_group(world: WatchedStack) -> Iterator[None]:
    """A group joins whose requests all break."""
    url = world.stack.state.nats_urls["worker"]
    command = [sys.executable, "-m", "tests.kits.alerts.breaking_leader", url, "demo"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        over = time.monotonic() + 5
        while time.monotonic() < over:  # the light load alone seldom chooses it
            httpx.post(
                f"{world.stack.state.url}/v1/chat/completions", json=prompt(str(over - time.monotonic()))
            )
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def no_broker(world: WatchedStack) -> Iterator[None]:
    with frozen(world.stack.pid_of("nats")):
        yield


@contextmanager
def no_redis(world: WatchedStack) -> Iterator[None]:
    world.redis.stop(kill=True)
    try:
        yield
    finally:
        world.redis.start()


@contextmanager
def damaged_blocks(world: WatchedStack) -> Iterator[None]:
    """One bit of every stored field is another one, and prompts whose blocks are stored come again."""
    body = prompt(f"{time.time()} {LONG_TEXT}")
    url = f"{world.stack.state.url}/v1/chat/completions"
    httpx.post(url, json=body, timeout=20)
    time.sleep(1.0)  # blocks are written behind
    with redis.Redis.from_url(world.redis.url) as store:
        for key in store.scan_iter(PREFIX_PATTERN):
            for name, value in store.hgetall(key).items():
                middle = len(value) // 2
                store.hset(key, name, value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :])
    for _ in range(6):
        httpx.post(url, json=body, timeout=20)
    yield


@contextmanager
def bus_garbage(world: WatchedStack) -> Iterator[None]:
    asyncio.run(_send_garbage(world.stack.state.nats_urls["router"]))
    yield


async def _send_garbage(url: str) -> None:
    bus = await NatsBus.connect(url, name="garbage")
    try:
        for _ in range(30):
            await bus.publish(subjects.work("g0"), b"\xc1 garbage")
            await asyncio.sleep(0.1)
        await bus.flush()
    finally:
        await bus.close()


@contextmanager
def http_garbage(world: WatchedStack) -> Iterator[None]:
    port = httpx.URL(world.stack.state.url).port
    with httpx.Client(base_url=world.stack.state.url) as client:
        for number in range(600):
            client.post("/v1/chat/completions", content=b"{garbage", headers=JSON)
            if number % 3 == 0:
                with socket.create_connection(("127.0.0.1", port)) as raw:
                    raw.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
                    raw.recv(100)
    yield


@contextmanager
def guessed_keys(world: WatchedStack) -> Iterator[None]:
    """A client tries keys in the form of stored ones."""
    with httpx.Client(base_url=world.stack.state.url) as client:
        for _ in range(100):
            client.get("/v1/models", headers={"authorization": f"Bearer {new_key().text}"})
    yield


# on the null engine, with a third group behind a proxy
SERVICES = (
    AlertCase("the leader dies", "RyzServiceDied", killed("worker-g0")),
    AlertCase("the leader is frozen", "RyzServiceHangs", frozen_leader),
    AlertCase("the leader's loop hangs", "RyzServiceHangs", hung_loop),
    AlertCase("the network of a leader is cut", "RyzGroupCutOff", cut_network),
    AlertCase("the network of a leader stalls", "RyzGroupCutOff", stalled_network),
    AlertCase("all groups are gone", "RyzNoGroupReady", all_frozen),
    AlertCase("a group breaks what it takes", "RyzBreakerTripped", breaking_group),
    AlertCase("a router dies", "RyzServiceDied", killed("router")),
    AlertCase("a gateway dies", "RyzServiceDied", killed("gateway")),
    AlertCase("the broker dies", "RyzBrokerAway", killed("nats")),
    AlertCase("the broker is frozen", "RyzBrokerAway", no_broker),
    AlertCase("Redis is away", "RyzRedisAway", no_redis),
    AlertCase("kvstate dies", "RyzServiceDied", killed("kvstate")),
    AlertCase("garbage on the bus", "RyzBadMessages", bus_garbage),
    AlertCase("garbage over HTTP", "RyzBadHttp", http_garbage),
    AlertCase("API keys are guessed", "RyzKeysGuessed", guessed_keys),
    AlertCase("tenants and keys cannot be read", "RyzAccountsOld", unread_accounts, OLD_S + WITHIN_S),
)
# on ranks with the demo model
RANKS = (
    AlertCase("a rank dies", "RyzRankDied", killed_rank),
    AlertCase("a rank hangs", "RyzRankHung", frozen_rank),
    AlertCase("memory is short in a step", "RyzRankOutOfMemory", rank_without_memory),
    AlertCase("bytes in the store are damaged", "RyzKvBlocksDamaged", damaged_blocks),
)
