"""The chat page in a real browser: several conversations at once, what is refused, and the keyboard."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.kits.pages.chromium import BROWSER, OpenPage, chromium, open_page
from tests.kits.stacks.stream_stack import KEYS, Fleet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium"),
]
KEY = KEYS["one"]
SETTINGS = {"max_tokens": 150, "seed": 7}
BEGUN = "performance.getEntriesByName('ryz:first-text').length > 0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("chat")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


def chat(
    browser: Browser, fleet: Fleet, width: int = 1200, **settings: int
) -> AbstractAsyncContextManager[OpenPage]:
    chosen = json.dumps(SETTINGS | settings)
    return open_page(browser, fleet.gateways[0] + "/", key=KEY, settings=chosen, width=width)


async def test_a_new_chat_leaves_the_answer_running(browser: Browser, fleet: Fleet) -> None:
    async with chat(browser, fleet, max_tokens=250) as opened:
        page = opened.page
        await opened.say("The first one")
        await opened.until(BEGUN)
        await page.click("#new-chat")
        assert await page.locator(".turn").count() == 0
        row = page.locator("#sessions li:has-text('The first one')")
        assert "answering" in await row.inner_text()
        await opened.say("The second one")
        await page.wait_for_selector(".turn.assistant.busy")
        await row.locator("button.open").click()
        assert await page.inner_text(".turn.user .body") == "The first one"
        await opened.until("document.querySelector('.turn.assistant .body').textContent.length > 0")
        await page.reload()  # both go on
        assert await page.inner_text(".turn.user .body") == "The first one"
        await opened.answer()
        talk = await page.evaluate("JSON.parse(sessionStorage.getItem('ryz.chat'))")
        assert len(talk["messages"][-1]["content"]) == 250
        assert "cut off" in await page.inner_text(".turn.assistant .meta")
        await opened.until("Object.keys(JSON.parse(sessionStorage.getItem('ryz.runs'))).length === 0")
        assert opened.wrong == []


async def test_a_stopped_conversation_is_kept_here(browser: Browser, fleet: Fleet) -> None:
    async with chat(browser, fleet) as opened:
        page = opened.page
        await opened.say("To be stopped")
        await opened.until(BEGUN)
        await page.click("#stop")
        await page.wait_for_selector(".broke:text-is('Stopped')")
        await page.click("#new-chat")
        row = page.locator("#sessions li:has-text('To be stopped')")
        assert "in this browser only" in await row.inner_text()
        await row.locator("button.open").click()
        assert await page.locator(".turn").count() == 2
        assert await page.inner_text(".broke") == "Stopped"


async def test_a_message_that_is_refused_goes_back_into_the_box(browser: Browser, fleet: Fleet) -> None:
    async with chat(browser, fleet) as opened:
        page, long = opened.page, "word " * 3000
        await opened.say(long)
        await page.wait_for_selector("#trouble:not([hidden])")
        assert await page.locator(".turn").count() == 0
        assert (await page.input_value("#composer-text")).strip() == long.strip()
        await opened.say("Shorter")
        await opened.answer()
        assert await page.locator(".turn").count() == 2
        assert await page.is_hidden("#trouble")


async def test_escape_closes_what_is_on_top_before_it_stops(browser: Browser, fleet: Fleet) -> None:
    async with chat(browser, fleet, width=390, max_tokens=400) as opened:
        page = opened.page
        await opened.say("Go on and on")
        await opened.until(BEGUN)
        await page.click("#menu")
        await page.keyboard.press("Escape")
        assert await page.locator("#sidebar[data-open]").count() == 0
        assert await page.is_visible("#stop")
        await page.keyboard.press("Escape")
        await page.wait_for_selector(".broke:text-is('Stopped')")


async def test_a_wrong_key_is_reported_as_wrong(browser: Browser, fleet: Fleet) -> None:
    async with open_page(browser, fleet.gateways[0] + "/", key="a-key-that-is-not-known") as opened:
        page = opened.page
        await page.wait_for_selector("#key-note:not([hidden])")
        assert await page.inner_text("#key-note") == "The gateway does not know this API key."
        await page.fill("dialog input[name=key]", KEY)
        await page.click("dialog button[value=save]")
        await page.wait_for_selector("#model option", state="attached")
        assert await page.is_hidden("#trouble")
