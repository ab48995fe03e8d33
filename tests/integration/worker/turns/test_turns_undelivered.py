"""Turns without a key, repeated because their answer never arrived: the session has the turn once."""

import asyncio

import httpx
import pytest

from tests.kits.stacks.turn_stack import TurnsFleet, body

LONG = 60  # tokens of 2 ms each


@pytest.mark.parametrize("first", [True, False])
async def test_a_turn_whose_stream_was_cut_and_ran_on_is_there_once(fleet: TurnsFleet, first: bool) -> None:
    replaced = 0
    for number in range(8):
        session = f"cut-{first}-{number}"
        before = [] if first else ["zero"]
        for text in before:
            await fleet.turn(text, session)
        headers = {"X-Session-Id": session, "X-Stream-Grace": "10"}
        asked = body("one", max_tokens=LONG, stream=True)
        async with fleet.http() as http, http.stream(
            "POST", "/v1/chat/completions", json=asked, headers=headers
        ) as answer:  # fmt: skip
            was_at = answer.headers["x-ryz-group"]
            async for _ in answer.aiter_raw():
                break
        await asyncio.sleep(number * 0.03)  # it continues without a client and ends
        again = await fleet.turn("one", session, index=number % 2, max_tokens=LONG)
        assert again.headers["x-ryz-session"].endswith("stored; replaced"), (was_at, dict(again.headers))
        reply = again.json()["session"]
        assert (reply["turns"], reply["version"]) == (1 + len(before), 2 + len(before))
        assert await fleet.said(session) == [*before, "one"], session
        replaced += reply["replaced"]
        after = await fleet.turn("two", session)
        assert after.json()["session"]["turns"] == 2 + len(before)
        assert await fleet.said(session) == [*before, "one", "two"]
    assert replaced == 8


@pytest.mark.parametrize("pause_s", [0.0, 1.0], ids=["while it runs", "when it has ended"])
async def test_a_turn_that_another_group_gets_again_is_there_once(fleet: TurnsFleet, pause_s: float) -> None:
    for was_at, index in (("g0", 0), ("g1", 1)):
        session, other = f"moved-{pause_s}-{was_at}", {"g0": "g1", "g1": "g0"}[was_at]
        await fleet.turn("zero", session)
        async with fleet.http() as http:
            (await http.post(f"/v1/sessions/{session}/pin", json={"group": was_at})).raise_for_status()
            headers = {"X-Session-Id": session, "X-Stream-Grace": "10"}
            asked = body("one", max_tokens=3 * LONG, stream=True)
            async with http.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
                assert answer.headers["x-ryz-group"] == was_at
                async for _ in answer.aiter_raw():
                    break
            await asyncio.sleep(pause_s)
            (await http.post(f"/v1/sessions/{session}/pin", json={"group": other})).raise_for_status()
        again = await fleet.turn("one", session, index=index, max_tokens=LONG)
        assert again.headers["x-ryz-group"] == other
        assert again.headers["x-ryz-session"].endswith("stored; replaced"), dict(again.headers)
        assert await fleet.said(session) == ["zero", "one"]
        after = await fleet.turn("one", session)  # its answer was delivered, so this one is another turn
        assert after.json()["session"]["turns"] == 3


async def test_a_turn_whose_gateway_was_killed_is_there_once(fleet: TurnsFleet) -> None:
    for number, stream in enumerate((False, True)):
        session = f"gateway-{number}"
        call = asyncio.create_task(fleet.turn("one", session, max_tokens=1500, stream=stream))
        await fleet.until(fleet.running, "the turn runs")
        await asyncio.to_thread(fleet.kill, "gateway0")
        with pytest.raises(httpx.TransportError):
            await call
        fleet.start_gateway(0)
        again = await fleet.turn("one", session, index=1, max_tokens=LONG)
        assert again.status_code == 200
        assert await fleet.said_by(1, session) == ["one"]
        await asyncio.to_thread(fleet.await_gateway, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_answered_may_be_said_again(fleet: TurnsFleet, stream: bool) -> None:
    session = f"yes-{stream}"
    for number in range(6):
        answer = await fleet.turn("yes", session, index=number % 2, stream=stream)
        assert "replaced" not in answer.text
    assert await fleet.said(session) == ["yes"] * 6
    answers = await asyncio.gather(
        *(fleet.turn("yes", session, index=index, stream=stream) for index in (0, 1))
    )
    assert all("replaced" not in answer.text for answer in answers)
    assert await fleet.said(session) == ["yes"] * 8


async def test_a_stream_that_its_client_resumed_was_answered(fleet: TurnsFleet) -> None:
    headers = {"X-Session-Id": "resumed", "X-Stream-Grace": "10"}
    asked = body("one", max_tokens=LONG, stream=True)
    async with fleet.http() as http, http.stream(
        "POST", "/v1/chat/completions", json=asked, headers=headers
    ) as answer:  # fmt: skip
        async for _ in answer.aiter_raw():
            break
    async with fleet.http(1) as http:
        rest = await http.get(f"/v1/streams/{answer.headers['x-stream-id']}")
    assert rest.text.endswith("data: [DONE]\n\n")
    again = await fleet.turn("one", "resumed")
    assert "replaced" not in again.text
    assert await fleet.said("resumed") == ["one", "one"]
