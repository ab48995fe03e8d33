"""The router is killed at any moment of a request's life.

Each answer is complete and unchanged, since new requests wait for a router. A request is computed twice only
if its caller sent it twice.
"""

import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.kits.chaos.fleet import Metrics
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import ServiceProcess, await_idle, await_next, metrics_of
from tests.kits.chaos.streams import Said, difference, http_client, make_bodies, read, undisturbed
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(300, 1800))
BURST = 16
TOKENS = 40
WINDOW_S = 0.08  # covers whole requests; the router holds one for less than 1 ms
SETTLE_S = 2.1  # a service that was ready this long before it died is restarted without a longer pause
ENDED_S = 20.0
DONE, GENERATED = "ryz_worker_requests_total", "ryz_worker_generation_tokens_total"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups with slow null engines."""
    settings = {"RYZ_NULL_STEP_DELAY_MS": "3", "RYZ_ROUTER_POLICY": "least_loaded"}
    options = ("--engine", "null", "--policy", "least_loaded", "--routers", "1")
    with Stack(tmp_path_factory.mktemp("router-stack"), *options, env=settings, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


class Burst:
    """Sends requests concurrently and kills the router meanwhile."""

    def __init__(self, stack: Stack, client: httpx.Client) -> None:
        self._stack, self._client = stack, client
        self._bodies = make_bodies("demo", BURST, TOKENS)
        self.expected = undisturbed(client, self._bodies)
        self._groups = [metrics for name, metrics in metrics_of(stack).items() if name in {"g0", "g1"}]

    def run(self, after_s: float) -> tuple[list[Said], int]:
        """Sends the requests and kills the router after `after_s`.

        Returns:
            The answers, all complete, and the process id of the killed router.
        """
        began = time.monotonic()
        dead = self._stack.pid_of("router")
        with ThreadPoolExecutor(BURST) as pool:
            # a separate process kills on time; this one is busy with sixteen threads
            killer = subprocess.Popen(["sh", "-c", f"sleep {after_s:.4f}; kill -9 {dead}"])
            futures = [pool.submit(read, self._client, body) for body in self._bodies]
            said = [one.result(ENDED_S) for one in futures]
        assert killer.wait(ENDED_S) == 0
        assert time.monotonic() - began < ENDED_S
        for one, expected in zip(said, self.expected, strict=True):
            assert difference(one, expected) == ""
        return said, dead

    def totals(self) -> tuple[float, float]:
        """Number of requests that groups have completed so far, and of tokens that they have generated."""

        def total(metrics: Metrics, name: str, **labels: str) -> float:
            return metrics.value(name, **labels)

        done = sum(total(group, DONE, outcome="done") for group in self._groups)
        return done, sum(total(group, GENERATED) for group in self._groups)

    def offsets(self, times: int) -> list[float]:
        """Seconds until the kill, from before the first request is sent until all have ended."""
        chance = random.Random(5)
        return [WINDOW_S * (index + chance.random()) / times for index in range(times)]


def test_the_only_router_killed(stack: Stack) -> None:
    with http_client(stack.state.url) as client:
        burst = Burst(stack, client)
        for offset in burst.offsets(scaled(2, 60)):
            done_before, tokens_before = burst.totals()
            time.sleep(SETTLE_S)
            said, dead = burst.run(offset)
            await_next(stack, "router", dead)
            await_idle(stack, groups=2)
            done, tokens = burst.totals()
            wanted = sum(one.counts[1] for one in said)
            print(f"{1000 * offset:.0f} ms: {tokens - tokens_before - wanted:g} extra tokens")
            assert done - done_before == len(said)
            assert wanted <= tokens - tokens_before <= 2 * wanted


def test_one_of_two_routers_killed(stack: Stack) -> None:
    """Callers publish the requests of the killed router again, and the other router takes them."""
    with (
        ServiceProcess("router", stack.state.nats_urls["router"], RYZ_ROUTER_POLICY="least_loaded"),
        http_client(stack.state.url) as client,
    ):
        burst = Burst(stack, client)
        for offset in burst.offsets(scaled(2, 40)):
            time.sleep(SETTLE_S)
            _, dead = burst.run(offset)
            await_next(stack, "router", dead)
        await_idle(stack, groups=2)
