"""The page of tenants in a real browser, before a stack of the null engine: usage, limits, keys, changes."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.pages.chromium import BROWSER, chromium, open_page
from tests.kits.waiting import until

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("admin-page")
    with Stack(folder, "--engine", "null", "--groups", "1") as started:
        yield started.await_ready()
        assert started.end() == 0


def made(stack: Stack, *words: str) -> Any:
    done = ryz(*words, "--json", cwd=stack.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_tenants_keys_and_changes_are_shown_and_a_key_is_revoked(stack: Stack) -> None:
    made(stack, "tenants", "create", "acme", "--requests-per-minute", "600", "--weight", "2")
    key = made(stack, "keys", "create", "--tenant", "acme", "--label", "<b>ci</b>", "--api", "chat")
    admin = (stack.state_dir.path / "admin.key").read_text().strip()
    body = {"model": "demo", "max_tokens": 7, "messages": [{"role": "user", "content": "Hi"}]}
    url = stack.state.url
    bearer = {"Authorization": f"Bearer {key['key']}"}

    async with (
        httpx.AsyncClient(base_url=url, headers=bearer, timeout=30) as http,
        chromium() as browser,
        open_page(browser, f"{url}/admin", width=390) as opened,
    ):
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

        async def is_added_up() -> bool:
            asked = (await http.get("/v1/usage")).json()
            return bool(sum(one["completion_tokens"] for one in asked.get("data", [])) == 7)

        await until(is_added_up)
        page = opened.page
        await page.wait_for_selector("#key-form:not([hidden])")
        await page.fill("#key", admin)
        await page.press("#key", "Enter")
        row = page.locator("#tenants tr", has_text="acme")
        await row.wait_for()
        assert "600 requests a minute" in await row.inner_text()
        assert "weight 2" in await row.inner_text()
        assert await row.locator("td").nth(5).inner_text() == "7"
        mine = page.locator("#keys tr", has_text=key["prefix"])
        assert "<b>ci</b>" in await mine.inner_text(), "labels are text"
        assert key["key"] not in await page.content()
        changes = await page.locator("#audit li").all_inner_texts()
        assert any(f"put key.{key['id']}" in one for one in changes)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "tables scroll, the page does not"

        await mine.get_by_role("button").click()
        await page.click("#ask button[value=yes]")
        await mine.wait_for(state="detached")
        assert opened.wrong == []

        async def is_refused() -> bool:
            return (await http.get("/v1/models")).status_code == 401

        await until(is_refused)
