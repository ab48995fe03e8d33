"""Requests that a web page can make a browser send: raw requests with a browser's headers."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import RawAnswer, ask

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
BODY = json.dumps(CHAT).encode()
KEYS: dict[str, Any] = {"api_keys": "sk-test-12345:a"}
CROSS = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}


async def send(
    gateway: Gateway, method: str, path: str, headers: dict[str, str], body: bytes = b"", *, host: str = ""
) -> RawAnswer:
    lines = {"Host": host or f"127.0.0.1:{gateway.port}", **headers}
    if body or method == "POST":
        lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return await ask(gateway.port, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/sessions", "/v1/sessions/import"]
)
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_type_that_a_form_can_send_is_refused(path: str, kind: str) -> None:
    """Browsers send these types without a preflight request; an untyped `Blob` is sent without the header."""
    async with running_gateway() as gateway:
        answer = await send(gateway, "POST", path, {"Content-Type": kind} if kind else {}, BODY)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
        assert not gateway.fleet.requests
        assert not gateway.fleet.sessions.records
        good = await send(gateway, "POST", path, {"Content-Type": "Application/JSON; charset=utf-8"}, BODY)
        assert good.status != 415


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/chat/completions", CROSS | {"Content-Type": "application/json"}),
        ("POST", "/v1/sessions", CROSS),
        ("POST", "/v1/sessions", {"Origin": "null"}),
        ("POST", "/v1/sessions", {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}),
        ("GET", "/v1/sessions", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        ("GET", "/v1/models", CROSS),
        ("GET", "/metrics", CROSS),
        ("DELETE", "/v1/sessions/x", CROSS),
        ("OPTIONS", "/v1/chat/completions", CROSS | {"Access-Control-Request-Method": "POST"}),
        ("GET", "/v1/models", CROSS | {"Authorization": "Bearer whatever"}),
    ],
)
async def test_an_open_gateway_is_not_for_pages_of_other_sites(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with running_gateway() as gateway:
        answer = await send(gateway, method, path, headers, BODY if method == "POST" else b"")
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert "RYZ_HTTP_ALLOWED_ORIGINS" in answer.error["message"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert not gateway.fleet.requests
        assert not gateway.fleet.sessions.records


async def test_clients_without_a_browser_and_pages_of_our_own_are_served() -> None:
    async with running_gateway() as gateway:
        own = f"http://127.0.0.1:{gateway.port}"
        for headers in (
            {},
            {"Origin": own},
            {"Origin": own, "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
        ):
            answer = await send(gateway, "GET", "/v1/models", headers)
            assert answer.status == 200
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_with_keys_a_page_needs_one_of_its_own() -> None:
    async with running_gateway(**KEYS) as gateway:
        assert (await send(gateway, "GET", "/v1/models", CROSS)).status == 403
        wrong = CROSS | {"Authorization": "Bearer nonsense"}
        assert (await send(gateway, "GET", "/v1/models", wrong)).status == 401
        good = CROSS | {"Authorization": "Bearer sk-test-12345"}
        assert (await send(gateway, "GET", "/v1/models", good)).status == 200


async def test_an_origin_that_is_named_may_ask_and_read() -> None:
    page = "https://chat.example"
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,authorization",
    }
    async with running_gateway(http_allowed_origins=f"{page}, app://notes") as gateway:
        there = {"Origin": page, "Sec-Fetch-Site": "cross-site"}
        preflight = await send(gateway, "OPTIONS", "/v1/chat/completions", there | asks)
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == page
        assert "POST" in preflight.headers["access-control-allow-methods"]
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            answer = await http.post("/v1/chat/completions", json=CHAT, headers=there)
            assert answer.headers["access-control-allow-origin"] == page
            exposed = answer.headers["access-control-expose-headers"]
            assert {"x-session-id", "x-ryz-ignored"} <= set(exposed.split(", "))
            assert (await http.get("/v1/models", headers={"Origin": "app://notes"})).status_code == 200
            streamed: dict[str, Any] = CHAT | {"stream": True}
            answer = await http.post("/v1/chat/completions", json=streamed, headers=there)
            assert answer.text.rstrip().endswith("data: [DONE]")
        assert (await send(gateway, "GET", "/v1/models", CROSS)).status == 403


async def test_pages_of_a_named_origin_may_use_every_method_that_a_path_takes() -> None:
    page = {"Origin": "https://chat.example", "Sec-Fetch-Site": "cross-site"}
    async with running_gateway(http_allowed_origins=page["Origin"], admin_keys="adm-11111111") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
        methods = {(method.upper(), path) for path, one in paths.items() for method in one}
        assert ("PUT", "/v1/manage/models/{model}") in methods
        for method, path in sorted(methods):
            asks = {
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": "authorization",
            }
            preflight = await send(gateway, "OPTIONS", re.sub(r"{.+?}", "m", path), page | asks)
            assert preflight.status == 200, (method, path, preflight.body)
        asks = {"Content-Type": "application/json", "Authorization": "Bearer adm-11111111"}
        body = b'{"source": "demo"}'
        put = await send(gateway, "PUT", "/v1/manage/models/m", page | asks, body)
        assert (put.status, put.error["code"]) == (503, "unavailable"), (
            "no host is there, and it was asked for"
        )
        assert put.headers["access-control-allow-origin"] == page["Origin"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("[::1]:8000", 200),
        ("192.168.1.7:8000", 200),
        ("chat.localhost", 200),
        ("rebound.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("gateway", 421),
        ("127.0.0.1:80@evil", 421),
        ("a b", 421),
    ],
)
async def test_a_name_that_was_rebound_to_us_is_refused(host: str, status: int) -> None:
    async with running_gateway() as gateway:
        answer = await send(gateway, "GET", "/v1/sessions", {}, host=host)
        assert answer.status == status
        if status == 421:
            assert answer.error["code"] == "host_not_allowed"
            assert "RYZ_HTTP_ALLOWED_HOSTS" in answer.error["message"]


async def test_names_follow_the_address_the_keys_and_the_setting() -> None:
    async with running_gateway(http_host="0.0.0.0", open_to_network=True) as gateway:
        assert (await send(gateway, "GET", "/v1/models", {}, host="gateway:8000")).status == 200
        assert (await send(gateway, "GET", "/v1/models", {}, host="rebound.example")).status == 421
    async with running_gateway(http_host="0.0.0.0", **KEYS) as gateway:
        assert (await send(gateway, "GET", "/live", {}, host="api.example")).status == 200
    async with running_gateway(http_allowed_hosts="api.example, *.inner.example") as gateway:
        for host, status in (("api.example:443", 200), ("a.inner.example", 200), ("inner.example", 421)):
            assert (await send(gateway, "GET", "/live", {}, host=host)).status == status
    async with running_gateway(http_allowed_hosts="*") as gateway:
        assert (await send(gateway, "GET", "/live", {}, host="any.example")).status == 200


async def test_metrics_ask_for_their_key() -> None:
    key = {"Authorization": "Bearer metrics-key-1"}
    async with running_gateway(metrics_key="metrics-key-1", **KEYS) as gateway:
        for wrong in (
            {},
            {"Authorization": "Bearer metrics-key-2"},
            {"Authorization": "Bearer sk-test-12345"},
        ):
            answer = await send(gateway, "GET", "/metrics", wrong)
            assert answer.status == 401
            assert b"RYZ_METRICS_KEY" in answer.body
            assert b"ryz_gateway" not in answer.body
        assert b"ryz_gateway_connections" in (await send(gateway, "GET", "/metrics", key)).body
        assert json.loads((await send(gateway, "GET", "/ready", {})).body) == {"status": "ready"}
        assert "checks" in json.loads((await send(gateway, "GET", "/ready", key)).body)
        assert (await send(gateway, "GET", "/live", {})).status == 200
        assert (await send(gateway, "GET", "/v1/models", key)).status == 401
        assert "version" not in json.loads((await send(gateway, "GET", "/", {})).body)
        known = {"Authorization": "Bearer sk-test-12345"}
        assert "version" in json.loads((await send(gateway, "GET", "/", known)).body)
    async with running_gateway() as gateway:
        assert (await send(gateway, "GET", "/metrics", {})).status == 200
