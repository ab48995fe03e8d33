"""Limits of a tenant at a gateway: counts, refusals, headers, and what goes on without the store."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from shared.messages import Limits, PriceRecord, TenantRecord
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.tenants.limit_services import LimitServices
from tests.kits.waiting import PATIENCE_S, until

BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
CHAT = "/v1/chat/completions"


class Clock:
    """Time of the store: it stands still, so that a test runs within one window, until the test moves it.

    Attributes:
        minute_s: When the minute began in which the test does.
        seconds: Passed since then.
    """

    def __init__(self, seconds: float = 20.0) -> None:
        self.minute_s = time.time() // 60 * 60
        self.seconds = seconds

    def __call__(self) -> float:
        return self.minute_s + self.seconds


async def until_answer(wanted: Callable[[httpx.Response], bool], http: httpx.AsyncClient) -> httpx.Response:
    """Asks again and again; returns the first answer that is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await http.post(CHAT, json=BODY)
            if wanted(answer):
                return answer
            await asyncio.sleep(0.05)


@asynccontextmanager
async def limited(
    limits: Limits, clock: Clock | None = None
) -> AsyncIterator[tuple[Gateway, LimitServices, httpx.AsyncClient]]:
    async with running_gateway() as gateway:
        services = LimitServices(gateway.fleet.bus, clock or Clock())
        await services.start()
        await services.put(TenantRecord(tenant="default", limits=limits))
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as http:
            yield gateway, services, http


async def ask(http: httpx.AsyncClient, count: int, body: dict[str, Any] = BODY) -> list[httpx.Response]:
    return list(await asyncio.gather(*(http.post(CHAT, json=body) for _ in range(count))))


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


async def test_exactly_as_many_requests_as_the_minute_has_are_answered() -> None:
    clock = Clock()
    async with limited(Limits(requests_per_minute=30), clock) as (_, services, http):
        answers = await ask(http, 80)
        assert statuses(answers) == {200: 30, 429: 50}
        # on a busy machine the store may have answered too late for the first ones
        refused = await until_answer(lambda answer: "x-ryz-limits" not in answer.headers, http)
        assert refused.status_code == 429
        assert refused.headers["x-ryz-reason"] == "tenant_requests_per_minute"
        assert refused.json()["error"]["code"] == "rate_limited"
        assert 30 <= int(refused.headers["retry-after"]) <= 40, "the end of the minute"
        assert refused.headers["x-ratelimit-limit-requests"] == "30"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert services.store.total("default::requests:minute", int(clock.minute_s * 1000)) == 30


async def test_most_requests_ask_nothing() -> None:
    async with limited(Limits(requests_per_minute=100_000)) as (_, services, http):
        await ask(http, 20)
        await until(lambda: services.calls > 0)
        before = services.calls
        for _ in range(25):  # longer than the quarter of a second over which a rate is measured
            assert statuses(await ask(http, 20)) == {200: 20}
        assert services.calls - before < 150


async def test_a_new_minute_has_all_requests_again() -> None:
    clock = Clock(56.0)
    async with limited(Limits(requests_per_minute=3), clock) as (_, _, http):
        assert statuses(await ask(http, 5)) == {200: 3, 429: 2}
        clock.seconds += 10.0
        await until_answer(lambda answer: answer.status_code == 200, http)
        assert statuses(await ask(http, 5)) == {200: 2, 429: 3}


async def test_tokens_that_were_used_are_settled() -> None:
    async with limited(Limits(tokens_per_minute=30, tokens_per_day=1000)) as (_, _, http):
        first = await http.post(CHAT, json=BODY)  # it uses 7 tokens, whatever was estimated
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "30"
        codes = [(await http.post(CHAT, json=BODY)).status_code for _ in range(6)]
        assert codes[0] == 200
        assert codes[-1] == 429


async def test_money_that_is_spent_is_refused_as_a_used_up_quota() -> None:
    async with limited(Limits(money_per_day=10)) as (_, services, http):
        await services.put(PriceRecord(model="demo", prompt=1_000_000, cached=0, completion=1_000_000))
        codes = []
        for _ in range(4):
            answer = await http.post(CHAT, json=BODY)  # 6 each: 2 tokens of the prompt, and 4 generated
            codes.append(answer.status_code)
        assert codes[0] == 200
        assert codes[-1] == 429
        assert answer.json()["error"]["code"] == "insufficient_quota"
        assert answer.json()["error"]["type"] == "insufficient_quota"
        assert answer.headers["x-ryz-reason"] == "tenant_money_per_day"
        assert answer.headers["x-should-retry"] == "false"


async def test_reading_counting_and_cancelling_go_on_when_tokens_and_money_are_used_up() -> None:
    async with limited(Limits(tokens_per_day=20, money_per_month=20)) as (_, services, http):
        await services.put(PriceRecord(model="demo", prompt=1_000_000, cached=0, completion=1_000_000))
        await until_answer(lambda answer: answer.status_code == 429, http)
        for method, path in (
            ("GET", "/v1/usage"),
            ("GET", "/v1/sessions"),
            ("GET", "/v1/batches"),
            ("GET", "/v1/batches/batch_none"),
            ("GET", "/v1/files"),
            ("GET", "/v1/responses/resp_none"),
            ("POST", "/v1/responses/resp_none/cancel"),
            ("POST", "/v1/batches/batch_none/cancel"),
            ("DELETE", "/v1/streams/none"),
        ):
            answer = await http.request(method, path)
            assert answer.status_code != 429, (method, path, answer.text)
        for path, body in (
            ("/tokenize", {"model": "demo", "prompt": "Hello"}),
            ("/v1/messages/count_tokens", BODY),
        ):
            answer = await http.post(path, json=body)
            assert answer.status_code != 429, (path, answer.text)
        for path in (CHAT, "/v1/messages", "/v1/responses"):
            assert (await http.post(path, json=BODY | {"max_tokens": 4})).status_code == 429, path


async def test_requests_that_take_no_tokens_count_as_requests() -> None:
    async with limited(Limits(requests_per_minute=4, tokens_per_day=1000)) as (_, _, http):
        body = {"model": "demo", "prompt": "Hello"}
        answers = [await http.post("/tokenize", json=body) for _ in range(12)]
        assert answers[-1].status_code == 429
        assert answers[-1].headers["x-ryz-reason"] == "tenant_requests_per_minute"


async def test_running_requests_are_counted_until_they_end() -> None:
    async with limited(Limits(running=2)) as (gateway, _, http):
        slow = {**BODY, "model": "slow", "stream": True}
        async with http.stream("POST", CHAT, json=slow) as one, http.stream("POST", CHAT, json=slow) as two:
            assert (one.status_code, two.status_code) == (200, 200)
            third = await http.post(CHAT, json=BODY)
            assert third.status_code == 429
            assert third.headers["x-ryz-reason"] == "tenant_running"
        await gateway.wait_idle()
        await until_answer(lambda answer: answer.status_code == 200, http)


async def test_requests_of_other_routes_count() -> None:
    async with limited(Limits(requests_per_minute=3)) as (_, _, http):
        for _ in range(2):
            assert (await http.get("/v1/responses/resp_none")).status_code == 404
        listed = await http.get("/v1/sessions")
        assert (listed.status_code, listed.headers["x-ratelimit-limit-requests"]) == (200, "3")
        assert statuses(await ask(http, 1)) == {429: 1}


async def test_minutes_go_on_locally_while_the_store_is_away_and_days_do_not() -> None:
    async with limited(Limits(requests_per_minute=1000)) as (gateway, services, http):
        assert statuses(await ask(http, 1)) == {200: 1}
        services.away = True
        assert statuses(await ask(http, 60)) == {200: 60}
        answer = await http.post(CHAT, json=BODY)
        assert answer.headers["x-ryz-limits"] == "local"
        assert gateway.metric("ryz_gateway_limits_local") == 1.0
        services.away = False
        await until_answer(lambda answer: "x-ryz-limits" not in answer.headers, http)
        assert gateway.metric("ryz_gateway_limits_local") == 0.0


async def test_without_its_store_a_day_ends_with_what_was_leased() -> None:
    async with limited(Limits(tokens_per_day=100_000)) as (_, services, http):
        services.away = True
        refused = await http.post(CHAT, json=BODY)
        assert refused.status_code == 503
        assert refused.headers["x-ryz-reason"] == "limits_away"
        assert refused.headers["x-ryz-limits"] == "local"
        assert int(refused.headers["retry-after"]) > 0
        services.away = False
        await until_answer(lambda answer: answer.status_code == 200, http)


async def test_a_flushed_store_learns_what_was_used() -> None:
    async with limited(Limits(requests_per_minute=20)) as (_, services, http):
        assert statuses(await ask(http, 12)) == {200: 12}
        services.store.flush()
        assert statuses(await ask(http, 30)) == {200: 8, 429: 22}


async def test_tenants_without_limits_of_their_own_keep_those_of_the_settings() -> None:
    async with running_gateway(rate_limit_rps=0.001, rate_limit_burst=2) as gateway:
        services = LimitServices(gateway.fleet.bus, Clock())
        await services.start()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as http:
            assert statuses(await ask(http, 5)) == {200: 2, 429: 3}
            await services.put(TenantRecord(tenant="default", limits=Limits(requests_per_minute=4)))
            assert statuses(await ask(http, 5)) == {200: 4, 429: 1}
        assert services.calls > 0
