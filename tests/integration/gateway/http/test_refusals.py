"""Bad input over real HTTP: an error in OpenAI's format each time, and the next request works."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
TYPED = "Content-Type: application/json\r\n"
HELLO = [{"role": "user", "content": "Hello"}]
GOOD: dict[str, Any] = {"model": "demo", "messages": HELLO}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(max_prompts=2, max_payload=64 * 1024) as running:
        yield running


def error_of(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-ryz-reason"]
    return error


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ("", None),
        ("{", None),
        ("[1]", None),
        ("null", None),
        ("{}", "model"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}]', None),
        ('{"model":"demo","messages":[{"role":"user","content":"\\ud800"}]}', None),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":NaN}', "temperature"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":1e999}', "temperature"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"whatever":NaN}', None),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"logit_bias":{"1":NaN}}', "logit_bias"),
        ('{"model":"demo","messages":[]}', "messages"),
        ('{"model":"demo","messages":7}', "messages"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"max_token":5}', "max_token"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":-0.1}', "temperature"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"n":"2"}', "n"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"tools":[{}]}', "tools[0].type"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"session_id":"a b"}', "session_id"),
        ('{"model":"demo","messages":[{"role":"user","content":"x"}],"timeout":0}', "timeout"),
        ("[" * 100_000, None),
    ],
)
async def test_a_bad_body_is_400_and_names_the_field(
    gateway: Gateway, http: httpx.AsyncClient, raw: str, param: str | None
) -> None:
    answer = await http.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = error_of(answer)
    assert error["param"] == param
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert not any(words in error["message"] for words in ("Input should", "List should", "after validation"))
    assert gateway.fleet.requests == []
    assert (await http.post(CHAT, json=GOOD)).status_code == 200
    assert gateway.running == 0


@pytest.mark.parametrize(
    ("path", "field", "fields"),
    [
        (CHAT, "max_completion_tokens", {}),
        (CHAT, "max_completion_tokens", {"logprobs": True}),  # not read in the short way
        (CHAT, "max_tokens", {}),
        ("/v1/responses", "max_output_tokens", {"input": "x", "messages": None}),
        ("/v1/completions", "max_tokens", {"prompt": "x", "messages": None}),
        ("/v1/messages", "max_tokens", {}),
    ],
)
async def test_an_answer_that_may_be_too_long_names_the_field_that_was_sent(
    http: httpx.AsyncClient, path: str, field: str, fields: dict[str, Any]
) -> None:
    body = {name: value for name, value in {**GOOD, **fields}.items() if value is not None}
    answer = await http.post(path, json=body | {field: 2**31 - 1})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert f"(`{field}`)" in error["message"]
    assert error.get("param", field) == field


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "128 tools, got 129"),
        (
            "/v1/responses",
            {"input": "x", "messages": None, "tools": [{"type": "function", "name": "f"}] * 129},
            "128 tools, got 129",
        ),
        (
            "/v1/messages",
            {"max_tokens": 1, "tools": [{"name": "f", "input_schema": {"type": "object"}}] * 129},
            "128 tools, got 129",
        ),
        ("/v1/messages", {"max_tokens": 1, "stop_sequences": ["a"] * 17}, "16 entries, got 17"),
        ("/v1/messages", {"max_tokens": 1, "messages": HELLO * 4097}, "4096 messages, got 4097"),
        (
            "/v1/responses",
            {"input": "x", "messages": None, "include": ["reasoning.encrypted_content"] * 17},
            "16 entries, got 17",
        ),
        ("/tokenize", {"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "128 tools"),
    ],
)
async def test_a_list_that_is_too_long_is_counted_in_its_own_entries(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], message: str
) -> None:
    body = {name: value for name, value in {**GOOD, **fields}.items() if value is not None}
    answer = await http.post(path, json=body)
    error = answer.json()["error"]
    (field,) = {"tools", "stop_sequences", "include"} & body.keys() or {"messages"}
    assert (answer.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(f"`{field}` must have at most {message}")


async def test_a_completion_has_its_own_refusals(http: httpx.AsyncClient) -> None:
    for fields, param in (
        ({"prompt": ["a", "b", "c"]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": ["a", "b"], "session_id": "s"}, "prompt"),
    ):
        answer = await http.post("/v1/completions", json={"model": "demo", **fields})
        assert (answer.status_code, error_of(answer)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X-Session-Id": "a b"}, "x-session-id"),
        ({"X-Session-Mode": "merge"}, "x-session-mode"),
        ({"X-Request-Timeout": "soon"}, "x-request-timeout"),
        ({"Content-Length": "0"}, None),
    ],
)
async def test_a_bad_header_is_400_and_named(
    http: httpx.AsyncClient, headers: dict[str, str], param: str | None
) -> None:
    content = b"" if "Content-Length" in headers else json.dumps(GOOD).encode()
    answer = await http.post(CHAT, content=content, headers=headers | {"content-type": "application/json"})
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


async def test_routes_methods_and_types_are_refused_in_the_same_shape(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/nothing")).status_code == 404
    unknown = error_of(await http.get("/v1/nothing"))
    assert (unknown["code"], unknown["message"].endswith("see /openapi.json")) == ("unknown_url", True)
    for page in ("/docs", "/redoc"):
        assert (await http.get(page)).status_code == 404
    wrong_method = await http.get(CHAT)
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "OPTIONS, POST")
    assert error_of(wrong_method)["code"] == "method_not_allowed"
    assert error_of(wrong_method)["message"] == f"GET {CHAT}: this path takes POST"
    several = error_of(await http.put("/v1/files"))
    assert several["message"] == "PUT /v1/files: this path takes GET or POST"
    form = await http.post(CHAT, data={"model": "demo"})
    assert (form.status_code, error_of(form)["code"]) == (415, "unsupported_media_type")
    packed = await http.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415


async def test_what_is_no_http_ends_only_its_own_connection(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"\x16\x03\x01 not http\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    await writer.wait_closed()
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def test_a_huge_body_is_refused_before_it_is_sent(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{TYPED}Content-Length: 20000000\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in head
    writer.close()
    await writer.wait_closed()
    await gateway.wait_idle()


async def test_a_huge_body_that_is_sent_anyway_sees_the_refusal(http: httpx.AsyncClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 100_000

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks():
            yield chunk

    whole = await http.post(CHAT, content=b"x" * 20_000_000, headers={"content-type": "application/json"})
    chunked = await http.post(CHAT, content=stream(), headers={"content-type": "application/json"})
    for answer in (whole, chunked):
        assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")


async def test_a_body_that_fits_http_but_not_the_broker(http: httpx.AsyncClient) -> None:
    body = GOOD | {"messages": [{"role": "user", "content": "x" * 100_000}]}
    async with asyncio.timeout(PATIENCE_S):
        answer = await http.post(CHAT, json=body)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")


async def test_a_body_that_never_comes() -> None:
    async with running_gateway(body_timeout_s=0.05) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{TYPED}Content-Length: 20\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert b"x-ryz-reason: body_timeout" in head
        writer.close()
        await writer.wait_closed()


async def test_keys_are_asked_for_when_there_are_some() -> None:
    async with (
        running_gateway(api_keys="secret-1:acme") as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        for headers, code in (({}, "missing_api_key"), ({"Authorization": "Bearer x"}, "invalid_api_key")):
            for answer in (
                await http.post(CHAT, json=GOOD, headers=headers),
                await http.get("/v1/models", headers=headers),
            ):
                assert (answer.status_code, error_of(answer)["code"]) == (401, code)
        good = await http.post(CHAT, json=GOOD, headers={"Authorization": "Bearer secret-1"})
        assert good.status_code == 200
        assert gateway.fleet.requests[0].tenant == "acme"
        assert (await http.get("/live")).status_code == 200


async def test_a_tenant_over_its_rate_is_429() -> None:
    async with (
        running_gateway(rate_limit_rps=0.5, rate_limit_burst=2) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        answers = [await http.post(CHAT, json=GOOD) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert error_of(answers[2])["code"] == "rate_limited"
        assert answers[2].headers["retry-after"] == "2"


async def test_too_many_at_once_is_503_and_a_slot_comes_back() -> None:
    async with (
        running_gateway(max_concurrent=1) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        first = asyncio.create_task(http.post(CHAT, json=GOOD | {"model": "stuck", "timeout": 0.2}))
        await gateway.fleet.wait_requests(1)
        second = await http.post(CHAT, json=GOOD)
        assert (second.status_code, error_of(second)["code"]) == (503, "overloaded")
        assert second.headers["retry-after"] == "1"
        assert (await first).status_code == 504
        assert (await http.post(CHAT, json=GOOD)).status_code == 200
        two = await http.post("/v1/completions", json={"model": "demo", "prompt": ["a", "b"]})
        assert two.status_code == 503
        assert gateway.running == 0


async def test_a_bug_is_500_without_its_text(
    gateway: Gateway, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("services.gateway.formats.chat.call.in_session", broken)
    answer = await http.post(CHAT, json=GOOD)
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal")
    assert "secret" not in answer.text
    monkeypatch.undo()
    assert (await http.post(CHAT, json=GOOD)).status_code == 200
