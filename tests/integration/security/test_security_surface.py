"""What the gateway serves without a key, over plain sockets: unusual hosts and targets bypass no check."""

import asyncio
import json

import pytest

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S

OPEN = {"/", "/health", "/live", "/ready", "/metrics", "/openapi.json"}
BODY = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}).encode()


async def raw(gateway: Gateway, request: bytes) -> bytes:
    """The whole answer to a raw request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def post(target: str, host: str = "x", more: str = "") -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    return f"{head}{more}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY


def documented(document: dict[str, dict[str, dict[str, object]]]) -> list[tuple[str, str]]:
    return [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in document["paths"].items()
        for method in methods
        if method in {"get", "post", "put", "patch", "delete"}
    ]


async def test_every_route_but_the_probes_wants_a_key() -> None:
    """API2, API5 and API9: every documented route except the probes requires a key."""
    async with running_gateway(api_keys="secret-1:acme") as gateway:
        page = await raw(
            gateway, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        routes = documented(json.loads(page.partition(b"\r\n\r\n")[2]))
        assert len(routes) > 10
        for method, path in routes:
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            answer = await raw(gateway, f"{head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
            status = int(answer.split()[1])
            assert (status == 401) == (path not in OPEN), f"{method} {path}: {answer[:200]!r}"
        assert gateway.fleet.requests == []


@pytest.mark.parametrize(
    "request_line",
    [
        post("http://x/live/../v1/chat/completions"),
        post("http://x/v1/chat/completions"),
        post("//v1/chat/completions"),
        post("/live/..%2fv1/chat/completions"),
        post("/v1/chat/completions/"),
        post("/v1/chat/completions", host="x/live?"),
        post("/v1/chat/completions", host="x/live#"),
        post("/v1/chat/completions", host="a/b@c"),
        post("/v1/chat/completions", more="X-Original-URL: /live\r\nX-Rewrite-URL: /live\r\n"),
        post("/v1/chat/completions", more="X-Forwarded-Prefix: /live\r\nX-Forwarded-For: 127.0.0.1\r\n"),
        post("/v1/chat/completions?path=/live"),
        post("/V1/chat/completions"),
        post("/v1/chat/completions", more="X-HTTP-Method-Override: GET\r\n"),
    ],
)
async def test_no_host_or_target_gets_past_the_key(request_line: bytes) -> None:
    """CVE-2026-48746: a path built from the Host header bypassed the middleware of vLLM."""
    async with running_gateway(api_keys="secret-1:acme") as gateway:
        answer = await raw(gateway, request_line)
        assert int(answer.split()[1]) in {400, 401, 404, 405, 421}, answer[:200]
        assert b"location:" not in answer.lower(), "a redirect would name the host of the request"
        assert gateway.fleet.requests == []


async def test_an_internal_error_shows_no_address_and_no_path() -> None:
    """CVE-2026-22778, CVE-2026-54236: exception texts revealed memory addresses to callers."""
    async with running_gateway() as gateway:
        for body in (b'{"model": "demo", "messages": [{"role": "user", "content": {}}]}', b"\xff\xfe", b"{"):
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            )
            answer = await raw(
                gateway, head + f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            assert answer.split()[1] == b"400"
            assert b"0x" not in answer
            assert b"Traceback" not in answer
            assert b".py" not in answer
