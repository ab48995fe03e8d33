"""Generations that run without their callers count among the running requests of their tenant."""

import asyncio

import httpx

from shared.messages import Limits
from tests.integration.gateway.limits.test_limits_of_tenants import BODY, CHAT, limited, until_answer
from tests.integration.gateway.streams.test_gateway_parking import Keeper
from tests.kits.waiting import until

SLOW = {**BODY, "model": "slow", "stream": True}
MANY = 12  # questions while one generation runs; each of them would pass if it did not count


def is_refused(answer: httpx.Response) -> bool:
    return answer.status_code == 429 and answer.headers["x-ryz-reason"] == "tenant_running"


def is_answered(answer: httpx.Response) -> bool:
    return answer.status_code == 200


async def stay_refused(http: httpx.AsyncClient) -> None:
    for _ in range(MANY):
        assert is_refused(await http.post(CHAT, json=BODY))
        await asyncio.sleep(0.1)


async def begin_and_leave(http: httpx.AsyncClient, grace: str) -> None:
    headers = {"x-stream-grace": grace}
    async with http.stream("POST", CHAT, json=SLOW, headers=headers) as stream:
        assert stream.status_code == 200
        async for _ in stream.aiter_bytes():
            return


async def test_a_stream_whose_client_left_counts_until_it_ends() -> None:
    async with limited(Limits(running=1)) as (gateway, _, http):
        await begin_and_leave(http, "3")
        await until(lambda: gateway.metric("ryz_gateway_parked_streams") == 1)
        await stay_refused(http)
        await until_answer(is_answered, http)
        assert gateway.metric("ryz_gateway_expired_streams_total") == 1
        assert is_answered(await http.post(CHAT, json=BODY)), "its unit came back once"


async def test_a_response_in_the_background_counts_until_it_ends() -> None:
    async with limited(Limits(running=1)) as (_, _, http):
        body = {"model": "slow", "input": "hi", "background": True}
        begun = await http.post("/v1/responses", json=body)
        assert begun.status_code == 200
        await stay_refused(http)
        assert is_refused(await http.post("/v1/responses", json=body))
        cancelled = await http.post(f"/v1/responses/{begun.json()['id']}/cancel")
        assert cancelled.status_code == 200
        await until_answer(is_answered, http)


async def test_a_resumed_stream_is_not_refused_and_counts_until_it_ends() -> None:
    async with limited(Limits(running=1)) as (gateway, _, http):
        keeper = await Keeper(gateway, 0).start()
        keeper.answers.set()
        async with http.stream("POST", CHAT, json=SLOW) as other:
            assert other.status_code == 200
            resumed = asyncio.create_task(http.get("/v1/streams/r-kept"))
            await until(lambda: gateway.metric("ryz_gateway_attached_streams_total") == 1)
        await until(lambda: gateway.running == 1)
        await stay_refused(http)
        resumed.cancel()
        await until(lambda: bool(keeper.cancels))
        await until_answer(is_answered, http)
