"""Limits over three gateways: exact while all is well, and as documented while the store is away."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from shared.messages import Limits
from tests.kits.chaos.scale import scaled
from tests.kits.stacks.limits_stack import GATEWAYS, LimitsFleet, in_one_minute, statuses

LIMIT, REQUESTS = scaled((60, 300), (1000, 10_000))
MINUTE = Limits(requests_per_minute=LIMIT)
TENANTS = {
    "plain": MINUTE,
    "paused": MINUTE,
    "flushed": MINUTE,
    "killed": MINUTE,
    "stateless": MINUTE,
    "days": Limits(tokens_per_day=10_000_000),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitsFleet]:
    made = LimitsFleet(tmp_path_factory.mktemp("limits"), TENANTS)
    try:
        made.start_all()
        yield made
    finally:
        made.stop_all()


async def test_a_minute_has_as_many_answers_as_its_limit_says(fleet: LimitsFleet) -> None:
    minute = await in_one_minute(scaled(30.0, 58.0))
    answers = await fleet.ask("plain", REQUESTS)
    found = statuses(answers)
    assert set(found) == {200, 429}
    assert 0.99 * LIMIT <= found[200] <= LIMIT * minutes_since(minute)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.headers["x-ryz-reason"] for answer in refused} == {"tenant_requests_per_minute"}


def minutes_since(minute: int) -> int:
    """How many minutes a test was in, each of which has its own requests: one, unless the machine is busy."""
    return int(time.time() // 60) - minute + 1


async def counted(fleet: LimitsFleet, tenant: str, first: int) -> int:
    """Uses some requests of each gateway; returns how many were answered."""
    answers = await fleet.ask(tenant, first)
    assert statuses(answers) == {200: first}
    await asyncio.sleep(0.6)  # rates are measured, and what was taken ahead is given back
    return first


async def test_a_paused_redis_leaves_each_gateway_its_share(fleet: LimitsFleet) -> None:
    minute = await in_one_minute()
    good = await counted(fleet, "paused", LIMIT // 5)
    process = fleet.redis.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        answers = await fleet.ask("paused", LIMIT * 3)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert set(statuses(answers)) == {200, 429}
    assert any(answer.headers.get("x-ryz-limits") == "local" for answer in answers)
    good += statuses(answers)[200]
    good += statuses(await fleet.until_header("paused", local=False))[200]
    good += statuses(await fleet.ask("paused", LIMIT))[200]
    assert 0.9 * LIMIT <= good <= LIMIT * minutes_since(minute) + 2 * 3


async def test_a_flushed_redis_learns_from_the_gateways(fleet: LimitsFleet) -> None:
    minute = await in_one_minute()
    good = await counted(fleet, "flushed", LIMIT // 2)
    fleet.flush()
    answers = await fleet.ask("flushed", LIMIT * 2)
    good += statuses(answers)[200]
    assert set(statuses(answers)) == {200, 429}
    # what was given back unseen may stay unused; what a gateway got in the moment of the flush only it knows
    assert 0.9 * LIMIT <= good <= LIMIT * minutes_since(minute) + GATEWAYS


async def test_a_killed_redis_comes_back_empty(fleet: LimitsFleet) -> None:
    minute = await in_one_minute()
    good = await counted(fleet, "killed", LIMIT // 2)
    fleet.redis.stop(kill=True)
    answers = await fleet.ask("killed", LIMIT // 4)
    assert set(statuses(answers)) <= {200, 429}
    good += statuses(answers)[200]
    fleet.redis.start()
    good += statuses(await fleet.until_header("killed", local=False))[200]
    good += statuses(await fleet.ask("killed", LIMIT * 2))[200]
    assert 0.9 * LIMIT <= good <= LIMIT * minutes_since(minute) + 2 * 3


async def test_without_the_state_service_minutes_go_on_and_days_end(fleet: LimitsFleet) -> None:
    minute = await in_one_minute()
    good = await counted(fleet, "stateless", LIMIT // 5)
    await counted(fleet, "days", 3)
    fleet.kill("kvstate")
    answers = await fleet.ask("stateless", LIMIT * 3)
    good += statuses(answers)[200]
    assert set(statuses(answers)) == {200, 429}
    give_up = time.monotonic() + 60
    while True:  # what was leased is used up
        days = await fleet.ask("days", 30)
        assert set(statuses(days)) <= {200, 503}
        if statuses(days)[503]:
            break
        assert time.monotonic() < give_up
    away = next(answer for answer in days if answer.status_code == 503)
    assert away.headers["x-ryz-reason"] == "limits_away"
    assert away.headers["x-ryz-limits"] == "local"
    assert int(away.headers["retry-after"]) > 0
    assert good <= LIMIT * minutes_since(minute) + 2 * 3
    fleet.start_kvstate()
    await fleet.until_header("days", local=False)
    assert statuses(await fleet.ask("days", 6)) == {200: 6}
