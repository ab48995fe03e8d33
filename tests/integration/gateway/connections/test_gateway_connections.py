"""Thousands of idle connections to a gateway process: its memory, and its latency for other clients.

The figures are printed (`pytest -s`); the assertions leave a wide margin for busy machines.
"""

import asyncio
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx
import psutil
import pytest

from shared.bus.nats import NatsBus
from tests.kits.gateway.gateway import Fleet
from tests.kits.gateway.process import gateway_process, ready
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

ATTACKERS = 10_000
PER_SOURCE = 500
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def open_files() -> Iterator[None]:
    """Raises this process's limit of open files to its maximum."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def fleet_on(nats_url: str) -> AsyncIterator[Fleet]:
    bus = await NatsBus.connect(nats_url, name="fleet")
    fleet = Fleet(bus)  # type: ignore[arg-type]
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.stop()
        await bus.close()


@contextmanager
def attackers(port: int, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections from many loopback addresses that send `sent` and then nothing."""
    sockets: list[socket.socket] = []
    for number in range(count):
        sock = socket.socket()
        sock.settimeout(PATIENCE_S)  # a gateway without a core accepts none for seconds
        sock.bind((f"127.0.1.{1 + number // PER_SOURCE}", 0))
        sock.connect(("127.0.0.1", port))
        with suppress(OSError):
            sock.sendall(sent)
        sockets.append(sock)
        if number % 50 == 0:
            time.sleep(0.002)
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


async def latencies(http: httpx.AsyncClient, count: int) -> list[float]:
    """Sorted latencies of completions, in seconds; asserts that each one succeeds."""
    seconds = []
    for _ in range(count):
        began_s = time.monotonic()
        answer = await http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, answer.text
        seconds.append(time.monotonic() - began_s)
    return sorted(seconds)


async def metric(http: httpx.AsyncClient, name: str) -> float:
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", (await http.get("/metrics")).text, re.MULTILINE)
    return sum(map(float, found))


@pytest.mark.alone  # it measures latencies
@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize(
    ("sent", "count", "idle_s", "max_mib"),
    [(b"", 2_000, 5, 60), (HEAD, 2_000, 5, 60), (HEAD + b"\r\n", ATTACKERS, 8, 200)],
    ids=["nothing", "half of the headers", "one request"],
)
async def test_ten_thousand_idle_connections_cost_little(
    nats_url: str, sent: bytes, count: int, idle_s: int, max_mib: int
) -> None:
    port = free_port()
    limits = dict.fromkeys(("http_first_byte_s", "http_headers_s"), float(idle_s))
    async with (
        fleet_on(nats_url),
        gateway_process(limits, nats_url=nats_url, http_port=str(port), keep_alive_s=str(idle_s)) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http,
    ):
        await ready(http)
        seen = psutil.Process(process.pid)
        before = await latencies(http, 200)
        rss_before = seen.memory_info().rss
        opening = attackers(port, count, sent)
        during = asyncio.create_task(latencies(http, 300))
        began_s = time.monotonic()
        await asyncio.to_thread(opening.__enter__)
        try:
            opened_s = time.monotonic() - began_s
            connections = await metric(http, "ryz_gateway_connections")
            rss = seen.memory_info().rss
            slowest = await during
            later = await latencies(http, 100)
            async with asyncio.timeout(40):
                while (left := await metric(http, "ryz_gateway_connections")) > 10:  # noqa: ASYNC110 (polls)
                    await asyncio.sleep(0.2)
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)
        print(
            f"\n{len(sent)} bytes each: {connections:.0f} connections, "
            f"RSS {rss_before >> 20} -> {rss >> 20} MiB, p99 {1000 * before[197]:.1f} ms before, "
            f"{1000 * slowest[296]:.1f} ms while they came, "
            f"{1000 * later[98]:.1f} ms beside them; {left:.0f} left"
        )
        # early ones close before late ones open where opening all takes longer than they may be idle
        assert connections > count * min(1.0, idle_s / opened_s) / 2, opened_s
        assert rss - rss_before < max_mib * 2**20
        assert max(slowest[296], later[98]) < 1.0


@pytest.mark.usefixtures("open_files")
async def test_the_limit_of_open_files_is_kept(nats_url: str) -> None:
    """Given more connections than files, the process neither dies nor spins, and it serves requests."""
    port = free_port()
    async with fleet_on(nats_url), gateway_process(nats_url=nats_url, http_port=str(port)) as process:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (300, 700))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            await ready(http)
            bound = await metric(http, "ryz_gateway_connections_limit")
            assert 1 <= bound <= 700 - 256
            seen = psutil.Process(process.pid)
            opening = attackers(port, 3000, b"")
            await asyncio.to_thread(opening.__enter__)
            try:
                await latencies(http, 20)
                assert await metric(http, "ryz_gateway_connections") <= bound
                used = sum(seen.cpu_times()[:2])
                await asyncio.sleep(1)
                spent = sum(seen.cpu_times()[:2]) - used
                await latencies(http, 20)
            finally:
                await asyncio.to_thread(opening.__exit__, None, None, None)
            print(f"\nbound {bound:.0f}, open files {seen.num_fds()}, CPU {spent:.2f} s in a second of rest")
            assert spent < 0.5
            assert process.returncode is None
