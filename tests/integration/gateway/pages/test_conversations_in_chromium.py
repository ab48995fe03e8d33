"""The chat page's list of conversations in a real browser, before a scripted gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Dialog, Page

from shared.messages import ChatMessage, SessionRecord
from shared.messages.base import DEFAULT_TENANT as TENANT
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.pages.chromium import BROWSER, OpenPage, chromium, open_page
from tests.kits.pages.routed_answers import answer_with
from tests.kits.waiting import until

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
TITLES = "[...document.querySelectorAll('#sessions b')].map((one) => one.textContent)"

# an answer that goes on until it is stopped
ENDLESS = r"""
const real = window.fetch;
window.fetch = async (path, init) => {
    if (!String(path).endsWith("/v1/chat/completions")) return real(path, init);
    const chunk = JSON.stringify({ choices: [{ index: 0, delta: { content: "Hello" } }] });
    return new Response(new ReadableStream({ start(out) {
        init.signal.addEventListener("abort", () => out.error(new DOMException("", "AbortError")));
        out.enqueue(new TextEncoder().encode(`id: 1\ndata: ${chunk}\n\n`));
    } }), { headers: { "content-type": "text/event-stream" } });
};
"""


def remember(gateway: Gateway, session_id: str, text: str, *, turns: int = 2, at_ms: int = 0) -> None:
    messages = [ChatMessage(role="user", content=text), ChatMessage(role="assistant", content="So be it.")]
    gateway.fleet.sessions.records[TENANT, session_id] = SessionRecord(
        session_id=session_id,
        tenant=TENANT,
        model="demo",
        version=1,
        turns=turns,
        messages=messages,
        updated_ms=at_ms,
    )


@asynccontextmanager
async def opened_chat(count: int) -> AsyncIterator[tuple[Gateway, OpenPage]]:
    """The page before a gateway with so many conversations, the last of them the newest."""
    async with running_gateway() as gateway, chromium() as browser:
        for number in range(count):
            remember(gateway, f"talk-{number}", f"Boat {number}", at_ms=1000 + number)
        async with open_page(browser, gateway.url + "/") as opened:
            if count:
                await opened.page.wait_for_selector("#sessions li")
            yield gateway, opened


async def agree(dialog: Dialog) -> None:
    await dialog.accept()


async def unfold(page: Page, title: str) -> None:
    await page.click(f"#sessions button[aria-label='More for {title}']")


async def test_single_calls_are_no_conversations_and_titles_come_from_the_cluster() -> None:
    async with opened_chat(2) as (gateway, opened):
        for number in range(20):
            remember(gateway, f"s-{number:016x}-{number:016x}", f"Call {number}", turns=1, at_ms=9000)
        await opened.page.reload()
        await opened.until(f"{TITLES}.join() === 'Boat 1,Boat 0'")
        assert opened.wrong == []


async def test_conversations_are_found_by_their_titles_also_those_further_back() -> None:
    async with opened_chat(60) as (_, opened):
        page = opened.page
        await opened.until(f"{TITLES}.length === 50")
        await page.fill("#find", "boat 7")
        await opened.until(f"{TITLES}.join() === 'Boat 7'")
        await page.fill("#find", "whale")
        await opened.until(
            "document.querySelector('#sessions-note').textContent === 'No title has these words.'"
        )
        await page.press("#find", "Escape")
        await opened.until(f"{TITLES}.length === 60")
        assert await page.is_hidden("#more")


async def test_more_conversations_are_shown_on_request() -> None:
    async with opened_chat(60) as (_, opened):
        await opened.page.click("#more")
        await opened.until(f"{TITLES}.length === 60")


async def test_a_conversation_is_renamed_and_keeps_its_name() -> None:
    async with opened_chat(2) as (_, opened):
        page = opened.page
        await unfold(page, "Boat 1")
        await page.click(".row-acts button:text-is('Rename')")
        await page.fill("#sessions input", "The blue boat")
        await page.press("#sessions input", "Escape")
        await opened.until(f"{TITLES}.join() === 'Boat 1,Boat 0'")
        await unfold(page, "Boat 1")
        await page.click(".row-acts button:text-is('Rename')")
        await page.fill("#sessions input", "The blue boat")
        await page.press("#sessions input", "Enter")
        await opened.until(f"{TITLES}.join() === 'The blue boat,Boat 0'")
        await page.reload()
        await opened.until(f"{TITLES}.join() === 'The blue boat,Boat 0'")


async def test_a_conversation_is_saved_as_text_and_as_a_session(tmp_path: Path) -> None:
    async with opened_chat(1) as (_, opened):
        page = opened.page
        await unfold(page, "Boat 0")
        saved = {}
        for words in ("text", "session"):
            async with page.expect_download() as download:
                await page.click(f".row-acts button:text-is('Save as {words}')")
            file = await download.value
            await file.save_as(tmp_path / file.suggested_filename)
            saved[file.suggested_filename] = (tmp_path / file.suggested_filename).read_text()
        assert saved["Boat-0.md"] == "# Boat 0\n\n**You**\n\nBoat 0\n\n**Assistant**\n\nSo be it.\n"
        session = json.loads(saved["Boat-0.session.json"])
        assert (session["format"], session["session_id"]) == ("ryzanstein.session", "talk-0")
        assert opened.wrong == []


async def test_one_and_then_all_conversations_are_deleted() -> None:
    async with opened_chat(60) as (gateway, opened):
        page, records = opened.page, gateway.fleet.sessions.records
        remember(gateway, "s-0123456789abcdef-0123456789abcdef", "Call", turns=1)
        page.once("dialog", agree)
        await unfold(page, "Boat 58")
        await page.click(".row-acts button:text-is('Delete')")
        await opened.until(f"!{TITLES}.includes('Boat 58')")
        assert (TENANT, "talk-58") not in records
        await page.click("#sessions li:has-text('Boat 59') button.open")
        await page.wait_for_selector(".turn.assistant")
        asked = asyncio.get_running_loop().create_future()

        async def note(dialog: Dialog) -> None:
            asked.set_result(dialog.message)
            await dialog.accept()

        page.once("dialog", note)
        await page.click("#delete-all")
        assert "these 59 conversations" in await asked
        await until(lambda: len(records) == 1)  # the single call, which is no conversation
        await opened.until(f"{TITLES}.length === 0")
        assert await page.locator(".turn").count() == 0
        assert opened.wrong == []


async def test_a_conversation_that_is_deleted_while_it_is_answered_stays_deleted() -> None:
    async with opened_chat(1) as (_, opened):
        page = opened.page
        await page.wait_for_selector("#model option", state="attached")
        await page.evaluate(ENDLESS)
        await opened.say("On and on")
        await opened.until("document.querySelector('.turn.assistant .body')?.textContent.includes('Hello')")
        await page.wait_for_selector("#sessions li:has-text('answering')")
        page.once("dialog", agree)
        await unfold(page, "Boat 0")
        await page.click(".row-acts button:text-is('Delete')")
        await opened.until(f"{TITLES}.join() === 'On and on'")
        assert await page.is_visible("#stop"), "another conversation was deleted; this one goes on"
        await page.click("#new-chat")
        page.once("dialog", agree)
        await unfold(page, "On and on")
        await page.click(".row-acts button:text-is('Delete')")
        await opened.until(f"{TITLES}.length === 0")
        assert await page.evaluate("localStorage.getItem('ryz.unsaved') ?? '{}'") == "{}"
        assert await page.evaluate("Object.keys(JSON.parse(sessionStorage.getItem('ryz.runs')))") == []


@pytest.mark.parametrize(("stored", "kept"), [("not_stored", 1), ("conflict", 1), ("stored", 0)])
async def test_an_answer_that_the_cluster_did_not_store_is_kept_here(stored: str, kept: int) -> None:
    async with opened_chat(0) as (_, opened):
        page = opened.page
        await page.wait_for_selector("#model option", state="attached")
        await answer_with(page, ["So be it."], stored=stored)
        await opened.say("Remember this")
        await opened.answer()
        await page.click("#new-chat")
        await page.wait_for_selector(".turn", state="detached")
        assert await page.locator("#sessions li:has-text('in this browser only')").count() == kept
        if kept:
            await page.click("#sessions button.open")
            assert await page.inner_text(".turn.assistant .body") == "So be it."


async def test_deleting_all_that_were_found_leaves_the_others() -> None:
    async with opened_chat(12) as (gateway, opened):
        page = opened.page
        await page.fill("#find", "boat 1")
        await opened.until(f"{TITLES}.join() === 'Boat 11,Boat 10,Boat 1'")
        page.once("dialog", agree)
        await page.click("#delete-all")
        await opened.until(f"{TITLES}.length === 9 && !{TITLES}.includes('Boat 11')")
        assert len(gateway.fleet.sessions.records) == 9
