"""Demands that cannot be served, sent all the time, do not slow the requests of others.

The figures count on a quiet machine only; the small run allows for neighbours, `make chaos` holds the bound.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import httpx
import pytest

from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.clients.bad_demands import BAD_DEMANDS, CHAT, HELLO
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(300, 600))
MEASURED_S = scaled(2.0, 60.0)
OTHERS = 4
ATTACKERS = 2
FACTOR = scaled(10.0, 2.0)
ALLOWED_S = scaled(5.0, 0.0)  # whatever the factor: other tests run beside the short form
BODY = {"model": "demo", "messages": HELLO, "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("bad-demands"), "--groups", "1", "--tensor-parallel", "1") as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def p99_s(url: str) -> float:
    """Returns the 99th percentile of the seconds that an ordinary chat takes, over `MEASURED_S`."""
    over = time.monotonic() + MEASURED_S

    def ask(_: int) -> list[float]:
        took_s = []
        with httpx.Client(base_url=url, timeout=60) as http:
            while time.monotonic() < over:
                began = time.monotonic()
                assert http.post(CHAT, json=BODY).status_code == 200
                took_s.append(time.monotonic() - began)
        return took_s

    with ThreadPoolExecutor(OTHERS) as pool:
        seconds = sorted(second for part in pool.map(ask, range(OTHERS)) for second in part)
    return seconds[int(0.99 * (len(seconds) - 1))]


def test_others_feel_little_of_it(stack: Stack) -> None:
    url = stack.state.url
    p99_s(url)  # warm
    calm_s = p99_s(url)
    over = threading.Event()
    refused: list[int] = []
    problems: list[str] = []

    def attack(first: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            for bad in cycle((*BAD_DEMANDS[first:], *BAD_DEMANDS[:first])):
                if over.is_set():
                    return
                status = http.post(bad.path, json={"model": "demo", **bad.body}).status_code
                refused.append(status)
                if not 400 <= status < 500:
                    problems.append(f"{bad.name}: {status}")

    with ThreadPoolExecutor(ATTACKERS) as pool:
        attacks = [pool.submit(attack, number * 7) for number in range(ATTACKERS)]
        try:
            attacked_s = p99_s(url)
        finally:
            over.set()
        for one in attacks:
            one.result()
    record("bad_demands", refused=len(refused), p99_calm_ms=1000 * calm_s, p99_attacked_ms=1000 * attacked_s)
    assert problems == []
    assert refused
    assert attacked_s < max(FACTOR * calm_s, ALLOWED_S), (calm_s, attacked_s)
