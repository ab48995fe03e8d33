"""Concurrent turns of one session: all are stored in some order, and each answer reports it."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.kits.chaos.fleet import Metrics
from tests.kits.stacks.turn_stack import TurnsFleet, body, both
from tests.kits.waiting import PATIENCE_S


@pytest.mark.parametrize("gateways", [1, 2])
async def test_of_ten_pairs_of_turns_none_is_lost(fleet: TurnsFleet, gateways: int) -> None:
    for pair in range(10):
        session = f"pair-{gateways}-{pair}"
        answers = await both(fleet.turn("one", session), fleet.turn("two", session, index=gateways - 1))
        assert [answer.status_code for answer in answers] == [200, 200]
        assert sorted(await fleet.said(session)) == ["one", "two"], session
        outcomes = sorted(answer.headers["x-ryz-session"] for answer in answers)
        assert outcomes == [
            "continued; turns=2; version=2; stored", "new; turns=1; version=1; stored"
        ]  # fmt: skip
        lengths = sorted(answer.json()["usage"]["prompt_tokens"] for answer in answers)
        assert lengths[1] > lengths[0] + len("user: one\nassistant: ")  # the second saw the first


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnsFleet]:
    """Turns alternate between groups, independent of their session."""
    folder = tmp_path_factory.mktemp("spread")
    with TurnsFleet(
        folder, router_policy="round_robin", session_max_bytes="2000", redis_timeout_s="0.2"
    ) as fleet:
        yield fleet


async def test_turns_that_run_in_two_groups_at_once_are_joined(spread: TurnsFleet) -> None:
    together = 0
    for pair in range(10):
        session = f"spread-{pair}"
        answers = await both(
            spread.turn("one", session, max_tokens=16), spread.turn("two", session, index=1, max_tokens=16)
        )
        assert sorted(await spread.said(session)) == ["one", "two"], session
        groups = {answer.headers["x-ryz-group"] for answer in answers}
        outcomes = sorted(answer.json()["session"]["turns"] for answer in answers)
        assert (outcomes, len(groups)) == ([1, 2], 2)
        assert {answer.json()["session"]["stored"] for answer in answers} == {"stored"}
        together += all(answer.headers["x-ryz-session"].startswith("new") for answer in answers)
    assert together  # the store had to join some; otherwise the test shows nothing


async def test_a_record_over_the_limit_is_reported(spread: TurnsFleet) -> None:
    await spread.turn("short", "large")
    answer = await spread.turn("x" * 3000, "large")
    assert answer.headers["x-ryz-session"] == "continued; turns=2; version=2; not_stored; reason=too_large"
    assert answer.json()["session"]["reason"] == "too_large"
    assert await spread.said("large") == ["short"]


async def test_a_stream_ends_with_what_became_of_its_turn(spread: TurnsFleet) -> None:
    chunks = []
    for usage in (False, True):
        options = {"include_usage": usage}
        answer = await spread.turn("hello", f"streamed-{usage}", stream=True, stream_options=options)
        # absent if the leader did not know it yet when the stream began
        assert answer.headers.get("x-ryz-session", "new; turns=1") == "new; turns=1"
        *_, last, done, end = answer.text.split("\n\n")
        assert (done.rpartition("data: ")[2], end) == ("[DONE]", "")
        chunks.append(json.loads(last.rpartition("data: ")[2]))
    assert [chunk["session"] for chunk in chunks] == [
        {"state": "new", "turns": 1, "version": 1, "stored": "stored"}
    ] * 2
    assert chunks[0]["choices"][0]["delta"] == {}
    assert (chunks[1]["choices"], chunks[1]["usage"]["completion_tokens"]) == ([], 4)


async def test_a_store_that_is_down_is_reported(spread: TurnsFleet) -> None:
    await spread.turn("one", "down")
    spread.redis.stop()
    try:
        whole = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        said = [*whole, {"role": "user", "content": "z"}]
        answer = await spread.turn("", "unknown", messages=said)
        assert answer.headers["x-ryz-session"].endswith("not_stored; reason=store_away")
        answer = await spread.turn("", "", messages=said)  # a session is created, and its record waits
        assert "; pending" in answer.headers["x-ryz-session"]
    finally:
        spread.redis.start()


async def test_turns_keep_their_order_when_their_group_is_killed(fleet: TurnsFleet) -> None:
    """The second turn yields 50 ms to the first; a later first is joined to it (docs/sessions.md)."""
    joined = 0
    for number in range(3):
        session = f"killed-{number}"
        group: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        first = asyncio.create_task(_streamed(fleet, session, group))
        index = int((await group)[1:])
        second = asyncio.create_task(fleet.turn("two", session, index=1))
        await _has_waiting(fleet, index)
        await asyncio.to_thread(fleet.kill, f"group{index}")
        fleet.start_group(index)
        assert (await first).endswith("data: [DONE]\n\n")
        answer = await second
        if answer.headers["x-ryz-session"].startswith("new;"):
            joined += 1
            assert sorted(await fleet.said(session)) == ["one", "two"]
        else:
            assert answer.headers["x-ryz-session"] == "continued; turns=2; version=2; stored"
            assert answer.json()["usage"]["prompt_tokens"] > 1500
            assert await fleet.said(session) == ["one", "two"]
        await asyncio.to_thread(fleet.await_group, index)
    assert joined < 3


async def _has_waiting(fleet: TurnsFleet, index: int) -> None:
    """Returns when a turn waits in the group: one that comes after the kill knows of no turn before it."""
    metrics = Metrics(f"http://127.0.0.1:{fleet.admin_ports[index]}")
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(metrics.value, "ryz_worker_num_requests_waiting") < 1:  # noqa: ASYNC110 (another process has no event)
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)  # `Accepted` is under way


async def _streamed(fleet: TurnsFleet, session: str, group: asyncio.Future[str]) -> str:
    """A long streamed turn; says which group has it when its answer has begun."""
    asked = body("one", max_tokens=1500, stream=True)
    headers = {"X-Session-Id": session}
    async with fleet.http() as http, http.stream(
        "POST", "/v1/chat/completions", json=asked, headers=headers
    ) as answer:  # fmt: skip
        said = ""
        async for text in answer.aiter_text():
            said += text
            if not group.done() and said.count("data: ") > 2:
                group.set_result(answer.headers["x-ryz-group"])
        return said
