"""The chat page's list of conversations, in a real browser before a whole stack with stored sessions."""

import asyncio

import httpx
import pytest
from playwright.async_api import Dialog

from tests.kits.e2e.stack import Stack
from tests.kits.pages.chromium import BROWSER, chromium, open_page
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")


async def stored(http: httpx.AsyncClient) -> list[str]:
    """The ids of the stored sessions."""
    return [one["session_id"] for one in (await http.get("/v1/sessions")).json()["data"]]


async def test_conversations_are_listed_opened_again_and_deleted(null_stack: Stack) -> None:
    url = null_stack.state.url
    async with (
        httpx.AsyncClient(base_url=url) as http,
        chromium() as browser,
        open_page(browser, url, settings='{"max_tokens": 8}') as opened,
    ):
        said = [{"role": "user", "content": "A single call"}]
        single = {"model": "demo", "max_tokens": 2, "messages": said}
        made = (await http.post("/v1/chat/completions", json=single)).headers["x-session-id"]
        async with asyncio.timeout(PATIENCE_S):
            while made not in await stored(http):  # noqa: ASYNC110 (the turn is stored behind the answer)
                await asyncio.sleep(0.02)
        before, page = set(await stored(http)), opened.page
        await page.wait_for_selector("#model option", state="attached")
        await opened.say("Remember the blue boat")
        answer = await opened.answer()
        mine = page.locator("#sessions li:has-text('Remember the blue boat')")
        await mine.wait_for()
        new: set[str] = set()
        async with asyncio.timeout(PATIENCE_S):
            while not new:  # the turn is stored behind the answer
                new = set(await stored(http)) - before
        assert len(new) == 1
        begun = (await http.get("/v1/sessions?spare=false")).json()["data"]
        assert {one["session_id"]: one["title"] for one in begun}.get(*new) == "Remember the blue boat"
        assert made not in {one["session_id"] for one in begun}
        await page.reload()
        await mine.wait_for()
        assert await page.locator("#sessions li:has-text('A single call')").count() == 0

        await page.click("#new-chat")
        assert await page.locator(".turn").count() == 0
        await mine.locator("button.open").click()
        await page.wait_for_selector(".turn.assistant")
        assert await page.inner_text(".turn.user .body") == "Remember the blue boat"
        assert await page.inner_text(".turn.assistant .body") == answer

        async def agree(dialog: Dialog) -> None:
            await dialog.accept()

        page.on("dialog", agree)
        await mine.locator("button.icon").click()
        await mine.locator(".row-acts button:text-is('Delete')").click()
        await mine.wait_for(state="detached")
        assert set(await stored(http)) <= before
        assert opened.wrong == []
