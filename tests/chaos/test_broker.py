"""The broker is killed and restarted, at once or after seconds: streams continue, new requests wait."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import await_idle, await_next, kill, ready_code
from tests.kits.chaos.streams import (
    Readers,
    difference,
    http_client,
    make_bodies,
    read,
    read_all,
    undisturbed,
)
from tests.kits.e2e.stack import Stack
from tests.kits.servers import NatsServer
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.timeout(scaled(300, 900))
SETTLE_S = 2.2
AWAY_S = scaled(3.0, 5.0)
TOKENS = scaled(540, 900)  # with steps of 12 ms, about twice the time without a broker


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop(kill=True)


@pytest.fixture
def slow_stack(nats: NatsServer, tmp_path: Path) -> Iterator[Stack]:
    """Two groups with slow null engines, on the test's own broker."""
    options = ("--engine", "null", "--nats-url", nats.url)
    with Stack(tmp_path, *options, env={"RYZ_NULL_STEP_DELAY_MS": "12"}, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def test_the_broker_is_killed_and_started_again(pair: Stack) -> None:
    """Streams that have begun continue, and new requests wait."""
    bodies = make_bodies("demo", scaled(8, 16), 128)
    with http_client(pair.state.url) as client:
        expected = undisturbed(client, bodies)
        with Readers(client, bodies, expected) as readers:
            for _ in range(scaled(1, 20)):
                time.sleep(SETTLE_S)
                await_next(pair, "nats", kill(pair, "nats"))
                readers.await_streams(len(bodies))
        assert readers.streams > len(bodies)
    await_idle(pair, groups=2)


def test_without_a_broker_for_seconds(slow_stack: Stack, nats: NatsServer) -> None:
    url = slow_stack.state.url
    bodies = make_bodies("demo", 8, TOKENS)
    with http_client(url) as client, ThreadPoolExecutor(len(bodies) + 1) as pool:
        expected = read_all(client, bodies)
        for _ in range(scaled(1, 5)):
            streams = [pool.submit(read, client, body) for body in bodies]
            time.sleep(1.0)
            assert ready_code(url) == 200
            nats.stop(kill=True)
            away = time.monotonic()
            wait_for(lambda: ready_code(url) == 503, "the gateway is not ready")
            late = pool.submit(read, client, bodies[0] | {"max_tokens": 8})
            assert not any(stream.done() for stream in streams)
            time.sleep(max(0.0, away + AWAY_S - time.monotonic()))
            nats.start()
            wait_for(lambda: ready_code(url) == 200, "the gateway is ready again")
            wait(streams, timeout=60)
            for stream, before in zip(streams, expected, strict=True):
                assert difference(stream.result(), before) == ""
            assert late.result(60).complete
    await_idle(slow_stack, groups=2)
