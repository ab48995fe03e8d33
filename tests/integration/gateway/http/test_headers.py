"""Headers and methods that clients of OpenAI's API rely on, and fields that are not known."""

import json

import httpx
import pytest

from tests.kits.gateway.gateway import running_gateway

CHAT = "/v1/chat/completions"
GOOD = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}


async def test_methods_are_reported_and_head_is_answered() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        for path, methods in (
            (CHAT, "OPTIONS, POST"),
            ("/v1/models", "GET, HEAD, OPTIONS"),
            ("/v1/streams/x", "DELETE, GET, OPTIONS"),
        ):
            answer = await http.options(path)
            assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
            assert (await http.put(path)).headers["allow"] == methods
        assert (await http.options("/v1/nothing")).status_code == 404
        head, got = await http.head("/v1/models"), await http.get("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(got.content))
        assert (await http.head("/v1/streams/x")).status_code == 405
        assert (await http.head("/v1/nothing")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_tell_their_time_and_what_is_left_of_a_limit(stream: bool) -> None:
    async with (
        running_gateway(rate_limit_rps=0.1, rate_limit_burst=3) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        left = []
        for _ in range(4):
            answer = await http.post(CHAT, json=GOOD | {"stream": stream}, headers={"x-request-id": "mine"})
            assert answer.headers["x-request-id"] == "mine"
            assert 0 <= int(answer.headers["openai-processing-ms"]) < 60_000
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            left.append((answer.status_code, answer.headers["x-ratelimit-remaining-requests"]))
            assert 0 < float(answer.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 30
        assert left == [(200, "2"), (200, "1"), (200, "0"), (429, "0")]


@pytest.mark.parametrize("asked", [None, "auto", "priority"])
async def test_the_service_tier_is_told_to_callers_that_asked_for_one(asked: str | None) -> None:
    body = GOOD if asked is None else GOOD | {"service_tier": asked}
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        whole = (await http.post(CHAT, json=body)).json()
        streamed = (await http.post(CHAT, json=body | {"stream": True})).text
        chunks = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
        for part in (whole, *chunks):
            assert part.get("service_tier") == (None if asked is None else "default")


async def test_every_route_under_the_limit_tells_what_is_left_of_it() -> None:
    async with (
        running_gateway(rate_limit_rps=0.01, rate_limit_burst=9) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        left = []
        for path in (
            CHAT,
            "/v1/completions",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/responses",
            "/v1/embeddings",
            "/tokenize",
            "/detokenize",
        ):
            answer = await http.post(path, json={})
            assert answer.status_code == 400, path
            left.append(answer.headers["x-ratelimit-remaining-requests"])
        left.append((await http.get("/v1/responses/a-b")).headers["x-ratelimit-remaining-requests"])
        assert left == list("876543210")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_of_tokens_counts_what_was_used(stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    body = json.dumps(GOOD | options)
    headers = {"content-type": "application/json"}
    async with (
        running_gateway(rate_limit_tpm=120) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        first = await http.post(CHAT, content=body, headers=headers)
        lines = [line for line in first.text.split("\n\n") if '"usage":{' in line]
        usage = json.loads(lines[0].removeprefix("data: "))["usage"]
        estimate, used = len(body) // 4, usage["total_tokens"]
        assert first.headers["x-ratelimit-limit-tokens"] == "120"
        assert int(first.headers["x-ratelimit-remaining-tokens"]) == 120 - estimate
        again = await http.post(CHAT, content=body, headers=headers)
        left = int(again.headers["x-ratelimit-remaining-tokens"])
        assert 0 <= left - (120 - used - estimate) <= 30, "some seconds bring two tokens each"
        refused = await http.post("/v1/completions", content=b" " * 460 + b"{}", headers=headers)
        assert (refused.status_code, refused.headers["x-ryz-reason"]) == (429, "tenant_tokens")
        assert 0 < float(refused.headers["x-ratelimit-reset-tokens"].removesuffix("s")) <= 60
        wrong = await http.post(CHAT, content=b"{}", headers=headers)
        assert (wrong.status_code, wrong.headers["x-ratelimit-limit-tokens"]) == (400, "120")


async def test_an_unknown_field_is_an_error_if_the_operator_says_so() -> None:
    body = GOOD | {"brand_new": 1}
    async with (
        running_gateway(strict_fields=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        refused = await http.post(CHAT, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "brand_new")
        inner = GOOD | {"messages": [{"role": "user", "content": "Hello", "colour": "red"}]}
        refused = await http.post(CHAT, json=inner)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].colour")
        refused = await http.post("/v1/responses", json={"model": "demo", "input": "Hello", "brand_new": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "brand_new")
        accepted = await http.post(CHAT, json=GOOD | {"store": True, "prompt_cache_key": "x"})
        assert accepted.status_code == 200
        assert "x-ratelimit-limit-requests" not in accepted.headers
