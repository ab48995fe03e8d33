"""No answer of any route has a header twice: two that disagree are read by each client as it likes.

The routes are those of the document, and the pages and their files beside them; raw sockets, since HTTP
libraries join headers of one name.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.gateway.pages.static_files import read_static_files
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import raw_connection
from tests.kits.realtime.frames import HANDSHAKE

pytestmark = pytest.mark.asyncio(loop_scope="module")
LISTS = {"vary", "set-cookie", "access-control-expose-headers"}  # several lines of these mean one list
HTML = "Accept: text/html\r\n"
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "demo", "prompt": "Hello"},
    "/v1/messages": CHAT | {"max_tokens": 5},
    "/v1/responses": {"model": "demo", "input": "Hello"},
    "/v1/embeddings": {"model": "demo", "input": "Hello"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(http_allowed_origins="https://chat.example") as running:
        yield running


async def heads(gateway: Gateway, method: str, path: str, more: str = "", body: bytes = b"") -> Counter[str]:
    """Counts the names in the head of an answer; also when it has no end."""
    async with raw_connection(gateway.port) as connection:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        await connection.send(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}{length}\r\n".encode() + body
        )
        head = (await connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    return Counter(line.partition(":")[0].lower() for line in head.split("\r\n")[1:] if line)


def twice(found: Counter[str]) -> set[str]:
    return {name for name, count in found.items() if count > 1} - LISTS


async def test_routes_of_the_document(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        document = (await http.get("/openapi.json")).json()
    asked = 0
    for path, methods in document["paths"].items():
        for method in methods:
            for body in (b"{}", json.dumps(GOOD.get(path, {})).encode()):
                sent = body if method in {"post", "put", "patch"} else b""
                filled = path.replace("{", "").replace("}", "")
                for more in ("", "Origin: https://chat.example\r\n"):
                    found = await heads(gateway, method.upper(), filled, more, sent)
                    assert not twice(found), (method, path, found)
                    assert found["cache-control"] == found["x-content-type-options"] == 1, (method, path)
                    asked += 1
    assert asked > 100


@pytest.mark.parametrize("path", sorted(GOOD))
async def test_streams(gateway: Gateway, path: str) -> None:
    body = json.dumps(GOOD[path] | {"stream": True}).encode()
    found = await heads(gateway, "POST", path, "X-Stream-Grace: 1\r\n", body)
    assert not twice(found), found
    assert found["cache-control"] == 1


async def test_pages_and_their_files(gateway: Gateway) -> None:
    paths = ["/", "/cluster", "/cluster/events", *(f"/pages/{name}" for name in read_static_files())]
    for path in paths:
        for method in ("GET", "HEAD"):
            for more in ("", HTML, "Origin: https://chat.example\r\n"):
                found = await heads(gateway, method, path, more)
                assert not twice(found), (method, path, found)
                assert found["cache-control"] == found["x-content-type-options"] == 1, (method, path)


async def test_pages_say_that_they_are_asked_for_again_with_their_tags(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        page = await http.get("/", headers={"Accept": "text/html"})
        assert page.headers["cache-control"] == "no-cache"
        known = {"Accept": "text/html", "If-None-Match": page.headers["etag"]}
        again = await http.get("/", headers=known)
        assert (again.status_code, again.headers["cache-control"]) == (304, "no-cache")
        assert (await http.get("/")).headers["cache-control"] == "no-store"  # the index of the API


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/none", ""),
        ("PUT", "/v1/chat/completions", ""),
        ("OPTIONS", "/v1/models", "Origin: https://chat.example\r\nAccess-Control-Request-Method: GET\r\n"),
        ("GET", "/v1/models", "Origin: https://other.example\r\n"),
        ("GET", "/v1/models", "Host: again\r\n"),
        ("GET", "/" + 9000 * "x", ""),
        ("GET", "/v1/realtime", ""),
    ],
)
async def test_refusals(gateway: Gateway, method: str, path: str, more: str) -> None:
    found = await heads(gateway, method, path, more)
    assert not twice(found), found


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/responses"])
async def test_upgrades(gateway: Gateway, path: str) -> None:
    async with raw_connection(gateway.port) as connection:
        await connection.send(HANDSHAKE.replace("/v1/realtime", path).encode())
        head = (await connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    assert head.startswith("HTTP/1.1 101 ")
    found = Counter(line.partition(":")[0].lower() for line in head.split("\r\n")[1:] if line)
    assert not twice(found), found
