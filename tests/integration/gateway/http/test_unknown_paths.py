"""Unknown paths name the nearest one that is served, and are a page for browsers."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.kits.gateway.gateway import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=10) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/api/chat", "/v1/chat/completions"),
        ("/chat", "/v1/chat/completions"),
        ("/api/generate", "/v1/completions"),
        ("/api/tags", "/v1/models"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/mesages", "/v1/messages"),
        ("/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/docs", "/openapi.json"),
        ("/v1/audio/speech", ""),
        ("/wp-login.php", ""),
        ("/" + "x" * 5000, ""),
    ],
)
async def test_the_nearest_path_is_named(http: httpx.AsyncClient, path: str, nearest: str) -> None:
    for method in ("GET", "POST"):
        answer = await http.request(method, path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "unknown_url")
        assert (f"did you mean {nearest}?" in error["message"]) == bool(nearest)
        assert ("did you mean" in error["message"]) == bool(nearest)
        assert error["message"].endswith("see /openapi.json")


async def test_browsers_get_a_page(http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/chat", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert '<a href="/v1/chat/completions">' in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("/chat", "/chat/", "/ui"):
        page = await http.get(path, headers=BROWSER)
        assert (page.status_code, "did you mean /?" in page.text, '<p><a href="/">/</a>' in page.text) == (
            404,
            True,
            True,
        )
    evil = await http.get("/%3Cscript%3Ealert(1)%3C/script%3E", headers=BROWSER)
    assert (evil.status_code, "<script" in evil.text) == (404, False)
    assert (await http.post("/api/chat", headers=BROWSER)).headers["content-type"] == "application/json"
