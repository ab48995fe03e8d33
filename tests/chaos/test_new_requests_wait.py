"""Routers, the broker and the gateway are killed or frozen under new requests, which wait instead of failing.

At least 99 % are answered without anything done by their clients; the others are honest refusals. A request
that a killed gateway had taken breaks off with its connection; those that come later wait for the next one.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.kits.chaos.new_requests import NewRequests, Outcome
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import await_idle, await_next, kill
from tests.kits.chaos.streams import Body
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(300, 1800))
KILLS = scaled(1, 30)
SETTLE_S = 2.1  # a service that was ready this long before it died is restarted without a longer pause
SHARE = 0.99
FROZEN_S = 3.0
BODY: Body = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 8,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups with null engines, and all else as `ryz up` has it."""
    with Stack(tmp_path_factory.mktemp("waiting-stack"), "--engine", "null", calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def check(requests: NewRequests, spared: int = 0) -> None:
    """Checks all outcomes; as many as `spared` may have broken off."""
    print(requests.tally())
    outcomes = requests.outcomes
    assert len({one.text for one in outcomes if one.answered}) == 1
    broken = [one for one in outcomes if not (one.answered or one.honest)]
    assert len(broken) <= spared, broken
    assert sum(one.answered for one in outcomes) >= SHARE * (len(outcomes) - len(broken))


@pytest.mark.parametrize("victims", [("router",), ("router", "router-2"), ("nats",)], ids="+".join)
def test_new_requests_wait_for_what_is_restarted(stack: Stack, victims: tuple[str, ...]) -> None:
    with NewRequests(stack.state.url, BODY) as requests:
        for _ in range(KILLS):
            time.sleep(SETTLE_S)
            for name, dead in [(name, kill(stack, name)) for name in victims]:
                await_next(stack, name, dead)
    check(requests)
    await_idle(stack, groups=2)


def test_a_frozen_router_delays_new_requests_for_a_moment(stack: Stack) -> None:
    """On an idle machine the third publish, after 0.6 s, is answered."""
    delays: list[float] = []
    with NewRequests(stack.state.url, BODY) as requests:
        for _ in range(scaled(1, 10)):
            frozen = stack.pid_of("router")
            time.sleep(SETTLE_S)
            os.kill(frozen, signal.SIGSTOP)
            began = time.monotonic()
            try:
                time.sleep(FROZEN_S)
            finally:
                os.kill(frozen, signal.SIGCONT)
            delays += [one.took_s for one in requests.outcomes if one.began > began]
            time.sleep(SETTLE_S)
    check(requests)
    delays.sort()
    print(f"{len(delays)} while frozen: median {delays[len(delays) // 2]:.3f} s, longest {delays[-1]:.3f} s")
    assert delays[int(0.99 * len(delays))] < 2.0
    await_idle(stack, groups=2)


def test_new_connections_wait_for_a_gateway_that_is_restarted(stack: Stack) -> None:
    with NewRequests(stack.state.url, BODY) as requests:
        kills: list[tuple[float, float]] = []
        for _ in range(KILLS):
            time.sleep(SETTLE_S)
            began = time.monotonic()
            dead = kill(stack, "gateway")
            kills.append((began, time.monotonic()))
            await_next(stack, "gateway", dead)
    in_flight = [one for one in requests.outcomes if any(_spans(one, *kill) for kill in kills)]
    print(f"{len(in_flight)} were under way at a kill")
    check(requests, spared=len(in_flight))
    await_idle(stack, groups=2)


def _spans(one: Outcome, since: float, until: float) -> bool:
    """Whether a request broke off that was under way at some moment of a kill.

    Sockets of a killed process are closed a moment later.
    """
    return one.status == 0 and one.began - 0.05 <= until and since <= one.began + one.took_s
