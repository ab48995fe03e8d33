"""The stack in containers beside busy loops: load is not death there either.

Leaders, routers and gateway see one another over the networks of Compose and in namespaces of their own, so
none of them can look at another's processes.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.kits.chaos.busy_loops import busy_loops
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.compose_stack import SERVICES, ComposeStack, running_stack
from tests.kits.e2e.turns import post_turn

pytestmark = [pytest.mark.compose, pytest.mark.timeout(scaled(2400, 7200))]
LOOPS = scaled([4], [4, 8, 16])
BUSY_S = scaled(20, 600)
CONCURRENCY = 8
ANSWER_S = 300.0


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    with running_stack() as running:
        for service in SERVICES:
            running.wait(service, "{{.State.Health.Status}}", "healthy", 300)
        yield running


def losses(stack: ComposeStack) -> list[str]:
    """What the routers said of lost groups."""
    lines = stack.compose("logs", "--no-color", "router").splitlines()
    return [line for line in lines if "group lost" in line]


def ask_on(stack: ComposeStack, number: int, until_s: float) -> Counter[str]:
    """Asks again and again until that time; counts the answers by status, or by what went wrong."""
    ended = Counter[str]()
    with httpx.Client(base_url=stack.url, timeout=ANSWER_S) as http:
        while time.monotonic() < until_s:
            turn = sum(ended.values())
            try:
                answer = post_turn(http, f"What is {number} and {turn}?", max_tokens=64)
            except httpx.HTTPError as error:
                ended[repr(error)] += 1
            else:
                ended[str(answer.status_code)] += 1
    return ended


@pytest.mark.parametrize("loops", LOOPS)
def test_load_loses_no_group_and_no_request(stack: ComposeStack, loops: int) -> None:
    before, until_s = losses(stack), time.monotonic() + BUSY_S
    with busy_loops(loops), ThreadPoolExecutor(CONCURRENCY) as threads:
        counts = list(threads.map(lambda number: ask_on(stack, number, until_s), range(CONCURRENCY)))
    ended, lost = sum(counts, Counter[str]()), losses(stack)[len(before) :]
    record("compose_busy", loops=loops, seconds=BUSY_S, ended=dict(ended), lost=lost)
    print(f"beside {loops} loops in {BUSY_S} s: {json.dumps(ended)}, lost: {lost}", flush=True)
    assert not lost
    assert set(ended) == {"200"}
