"""Headers and methods that clients of OpenAI's API rely on, and fields that are not known."""

import httpx
import pytest

from tests.kits.gateway.gateway import running_gateway

CHAT = "/v1/chat/completions"
GOOD = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}


async def test_methods_are_told_and_head_is_answered() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        for path, methods in (
            (CHAT, "OPTIONS, POST"),
            ("/v1/models", "GET, HEAD, OPTIONS"),
            ("/v1/streams/x", "DELETE, GET, OPTIONS"),
        ):
            told = await http.options(path)
            assert (told.status_code, told.headers["allow"], told.content) == (204, methods, b"")
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
