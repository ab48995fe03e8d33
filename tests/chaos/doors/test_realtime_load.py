"""WebSockets of four streams each, torn at random, and clients that never read: nothing is lost or grows."""

import asyncio
import json
import random
import time
from collections.abc import Iterator

import psutil
import pytest
from websockets.asyncio.client import connect

from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.realtime.readers import Reader, read, said

pytestmark = pytest.mark.timeout(scaled(300, 900))
CONNECTIONS, STREAMS, TOKENS = scaled(24, 500), 4, scaled(40, 60)
SILENT = scaled(8, 50)  # connections that do not read
MIB = 2**20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {
        "RYZ_NULL_STEP_DELAY_MS": "10",
        "RYZ_MAX_CONCURRENT": "8192",
        "RYZ_MAX_RUNNING": "2048",
        "RYZ_TOKEN_BUDGET": "4096",
        "RYZ_MAX_WAITING": "4096",
        "RYZ_STREAM_MAX_PARKED": "4096",
        "RYZ_REALTIME_GRACE_S": "60",
        "RYZ_STREAM_MAX_GRACE_S": "60",
        "RYZ_WRITE_TIMEOUT_S": "5",
        "RYZ_KV_CACHE_TOKENS": "524288",
    }
    folder = tmp_path_factory.mktemp("realtime-stack")
    with Stack(folder, "--engine", "null", env=settings) as running:
        yield running.await_ready()
        assert running.end() == 0


def gateway_of(stack: Stack) -> psutil.Process:
    return psutil.Process(next(one.pid for one in stack.state.services if one.name.startswith("gateway")))


async def test_torn_connections_lose_and_repeat_nothing(stack: Stack) -> None:
    url, gateway = stack.state.url.replace("http", "ws") + "/v1/realtime", gateway_of(stack)
    rng, calm = random.Random(11), [Reader(index, TOKENS) for index in range(12)]
    await read(url, calm, [])
    before = gateway.memory_info().rss
    clients = [[Reader(number + index, TOKENS) for index in range(STREAMS)] for number in range(CONNECTIONS)]
    began, cpu = time.monotonic(), sum(gateway.cpu_times()[:2])
    await asyncio.gather(
        *(read(url, readers, [rng.randint(1, 4 * TOKENS) for _ in range(2)]) for readers in clients)
    )
    took_s = time.monotonic() - began
    unequal = lost = repeated = 0
    for number, readers in enumerate(clients):
        for index, reader in enumerate(readers):
            ids = [event_id for event_id, _ in reader.events]
            repeated += len(ids) - len(set(ids))
            lost += not reader.done
            unequal += said(reader) != said(calm[(number + index) % len(calm)])
    record(
        "realtime_torn",
        connections=CONNECTIONS,
        streams=CONNECTIONS * STREAMS,
        cuts=2 * CONNECTIONS,
        events=sum(len(reader.events) for readers in clients for reader in readers),
        refusals=sum(reader.refusals for readers in clients for reader in readers),
        seconds=round(took_s, 1),
        gateway_cpu_s=round(sum(gateway.cpu_times()[:2]) - cpu, 1),
        gateway_grown_mib=round((gateway.memory_info().rss - before) / MIB, 1),
        unequal=unequal,
        lost=lost,
        repeated=repeated,
    )
    assert (unequal, lost, repeated) == (0, 0, 0)


async def test_clients_that_do_not_read_grow_no_memory(stack: Stack) -> None:
    """Each asks for four long answers and reads nothing; they are cut off, and others do not feel them."""
    url, gateway = stack.state.url.replace("http", "ws") + "/v1/realtime", gateway_of(stack)
    before, peak = gateway.memory_info().rss, 0
    body = {"model": "demo", "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True, "n": 4}
    request = {"type": "request", "path": "/v1/completions", "body": body | {"logprobs": 5}}
    sockets = [await connect(url, max_queue=1, max_size=None) for _ in range(SILENT)]
    for socket in sockets:
        for index in range(STREAMS):
            await socket.send(json.dumps(request | {"id": f"r{index}"}))
    other = Reader(1, TOKENS)
    reading = asyncio.create_task(read(url, [other], []))
    deadline, idle = time.monotonic() + 60, False
    while not idle and time.monotonic() < deadline:
        peak = max(peak, gateway.memory_info().rss)
        await asyncio.sleep(0.5)
        services = (await asyncio.to_thread(stack.status))["services"]  # none, if the machine is too busy
        idle = any(one["service"] == "gateway" and not one["detail"]["running"] for one in services)
    await reading
    for socket in sockets:
        socket.transport.abort()
    grown = (max(peak, gateway.memory_info().rss) - before) / MIB
    record("realtime_silent", connections=SILENT, streams=SILENT * STREAMS, peak_grown_mib=round(grown, 1))
    assert idle, "answers that are not read do not end"
    assert other.done
    # a stream holds unread frames, which RYZ_MAX_UNREAD_BYTES bounds, and one piece, however long its answer
    assert grown < 16 + SILENT * STREAMS
