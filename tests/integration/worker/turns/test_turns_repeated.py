"""Calls repeated with their key after a broken connection: the session has the turn once."""

import asyncio

import httpx
import pytest

from tests.kits.stacks.turn_stack import TurnsFleet, body

LONG = 60  # tokens of 2 ms each


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


async def cut(
    fleet: TurnsFleet, session: str, *, stream: bool, after_s: float, headers: dict[str, str]
) -> None:
    """Makes a call whose client disconnects after `after_s`."""
    named = {"X-Session-Id": session, **headers}
    asked = body("one", max_tokens=LONG, stream=stream)
    async with fleet.http() as http:
        call = asyncio.create_task(http.post("/v1/chat/completions", json=asked, headers=named))
        await asyncio.sleep(after_s)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_with_a_key_counts_once_however_its_connection_broke(
    fleet: TurnsFleet, stream: bool
) -> None:
    for number in range(16):
        session = f"keyed-{stream}-{number}"
        key = {"Idempotency-Key": session}
        leaves_s = number * 0.012  # before it runs, while it runs, after it has ended
        await cut(fleet, session, stream=stream, after_s=leaves_s, headers=key | {"X-Stream-Grace": "10"})
        again = await fleet.turn(
            "one", session, index=number % 2, headers=key, max_tokens=LONG, stream=stream
        )
        assert again.status_code == 200, again.text
        if stream:
            assert again.text.endswith("data: [DONE]\n\n")
            assert again.text.count('"finish_reason":"length"') == 1
        else:
            assert len(text_of(again)) == LONG
            assert again.json()["session"] == {
                "state": "new", "turns": 1, "version": 1, "stored": "stored"
            }  # fmt: skip
        assert await fleet.said(session) == ["one"], session


async def test_the_answer_that_has_ended_comes_again_from_any_gateway(fleet: TurnsFleet) -> None:
    key = {"Idempotency-Key": "ended"}
    first = await fleet.turn("one", "ended", headers=key)
    for index in (0, 1):
        again = await fleet.turn("one", "ended", index=index, headers=key)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first.json()
    made = [
        await fleet.turn("one", "", index=index, headers={"Idempotency-Key": "no-session"})
        for index in (0, 1)
    ]
    assert made[0].json() == made[1].json()
    assert "idempotent-replayed" not in first.headers
    async with fleet.http(1) as http:
        asked = {"model": "demo", "prompt": "x", "max_tokens": 4}
        texts = [
            (await http.post("/v1/completions", json=asked, headers={"Idempotency-Key": "prompt"})).json()
            for _ in range(2)
        ]
    assert texts[0] == texts[1]


async def test_a_key_of_another_call_is_a_conflict_and_another_tenant_s_is_its_own(fleet: TurnsFleet) -> None:
    key = {"Idempotency-Key": "reused"}
    await fleet.turn("one", "reused", headers=key)
    for index, session in ((0, "reused"), (1, "reused"), (0, "elsewhere")):
        other = await fleet.turn("two", session, index=index, headers=key)
        assert (other.status_code, other.headers["x-ryz-reason"]) == (409, "idempotency_key_reused")
    async with fleet.http(tenant="two") as http:
        answer = await http.post("/v1/chat/completions", json=body("two"), headers=key)
    assert answer.status_code == 200
    bad = await fleet.turn("one", "reused", headers={"Idempotency-Key": "two words"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "idempotency-key")
    assert await fleet.said("reused") == ["one"]


@pytest.mark.parametrize("when", ["running", "ended"])
async def test_a_key_holds_when_its_gateway_or_its_leader_is_killed(fleet: TurnsFleet, when: str) -> None:
    session = f"killed-{when}"
    key = {"Idempotency-Key": session}
    tokens = 1500 if when == "running" else LONG
    if when == "running":
        call = asyncio.create_task(fleet.turn("one", session, headers=key, max_tokens=tokens))
        await fleet.until(fleet.running, "the turn runs")
        await asyncio.to_thread(fleet.kill, "gateway0")
        with pytest.raises(httpx.TransportError):
            await call
        fleet.start_gateway(0)
    else:
        first = await fleet.turn("one", session, headers=key, max_tokens=tokens)
        index = int(first.headers["x-ryz-group"][1:])
        await asyncio.to_thread(fleet.kill, f"group{index}")
        fleet.start_group(index)
    again = await fleet.turn("one", session, index=1, headers=key, max_tokens=tokens)
    assert (again.status_code, len(text_of(again))) == (200, tokens)
    assert again.json()["session"]["stored"] == "stored"
    assert await fleet.said_by(1, session) == ["one"]
    await asyncio.to_thread(fleet.await_gateway, 0)
    for index in range(fleet.groups):
        await asyncio.to_thread(fleet.await_group, index)
