"""Services are killed while a batch runs: each request has one result in the end."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.chaos.batch_client import BatchCaller
from tests.kits.chaos.scale import full, scaled
from tests.kits.chaos.services import await_next, kill
from tests.kits.e2e.stack import Stack
from tests.kits.gateway.batch_stack import chat_lines

pytestmark = pytest.mark.timeout(scaled(300, 1800))
ANY = ("gateway", "nats", "redis", "worker-g0", "worker-g1")
SETTINGS = {"RYZ_BATCH_LEASE_S": "2", "RYZ_NULL_STEP_DELAY_MS": "5"}
END_S = scaled(60.0, 600.0)


@pytest.fixture
def stack_folder(tmp_path: Path) -> Path:
    """Where the stack of the long form has its state, over its restart."""
    return tmp_path


def started(folder: Path) -> Stack:
    """A stack of two null groups that keeps sessions on disk."""
    options = ("--engine", "null", "--groups", "2", "--redis-dir", str(folder / "redis"))
    return Stack(folder, *options, env=SETTINGS, calm=False).await_ready()


def run_with_kills(stack: Stack, caller: BatchCaller, batch_id: str, counts: list[int], *, seed: int) -> None:
    """Kills a service each time so many requests have a result."""
    order = random.Random(seed)
    victims = list(ANY[:1] + ANY[1:2] + ANY[3:4])
    while len(victims) < len(counts):
        victims.append(order.choice(ANY))
    for count, victim in zip(counts, victims, strict=True):
        caller.await_done(batch_id, count, END_S)
        await_next(stack, victim, kill(stack, victim))


@pytest.mark.skipif(full, reason="the long form below does the same")
def test_three_kills(pair: Stack) -> None:
    """Gateway, broker and leader die once each, in a stack that computes."""
    caller = BatchCaller(lambda: pair.state.url)
    batch_id = caller.submit(chat_lines(300, max_tokens=2))
    run_with_kills(pair, caller, batch_id, [40, 110, 180], seed=1)
    caller.check_whole(batch_id, 300, END_S)


@pytest.fixture
def long_stack(stack_folder: Path) -> Iterator[Stack]:
    """A stack of null groups, for the long form."""
    with started(stack_folder) as stack:
        yield stack


@pytest.mark.skipif(not full, reason="takes minutes: RYZ_CHAOS=full")
def test_twenty_kills_and_a_restart_of_all(long_stack: Stack, stack_folder: Path) -> None:
    """Ten thousand requests, twenty kills of anything, and a restart of the whole stack in the middle."""
    running = [long_stack]
    caller = BatchCaller(lambda: running[0].state.url)
    batch_id = caller.submit(chat_lines(10_000))
    counts = [300 * (index + 1) for index in range(20)]
    run_with_kills(running[0], caller, batch_id, counts[:10], seed=2)
    assert caller.done(batch_id) < 10_000
    assert running[0].end() == 0
    with started(stack_folder) as again:
        running[0] = again
        run_with_kills(again, caller, batch_id, counts[10:], seed=3)
        caller.check_whole(batch_id, 10_000, END_S)
        assert again.end() == 0
