"""Versions of a conversation, code and rates on the chat page, in a real browser with written answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Route

from shared.messages import ChatMessage, SessionRecord
from shared.messages.base import DEFAULT_TENANT as TENANT
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.pages.chromium import BROWSER, OpenPage, chromium, open_page
from tests.kits.pages.routed_answers import answer_with

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
BODIES = "[...document.querySelectorAll('.turn .body')].map((one) => one.textContent.trim()).join('|')"
PYTHON = '```python\ndef hello(name):\n    return f"Hello {name}"  # <b>\n```\n\n```\nplain <i>\n```\n'
KEYWORDS = "[...document.querySelectorAll('.code .hljs-keyword')].map((one) => one.textContent)"
HEIGHTS = """(() => {
    const one = document.querySelector("#scroll"), page = document.documentElement;
    return [one.scrollHeight - one.clientHeight, page.scrollHeight - page.clientHeight];
})()"""


@asynccontextmanager
async def opened_chat(script: str = "") -> AsyncIterator[tuple[Gateway, OpenPage]]:
    async with (
        running_gateway() as gateway,
        chromium() as browser,
        open_page(browser, gateway.url + "/", script=script) as opened,
    ):
        await opened.page.wait_for_selector("#model option", state="attached")
        yield gateway, opened


async def test_what_was_edited_or_asked_again_can_be_opened_again() -> None:
    async with opened_chat() as (_, opened):
        page = opened.page
        bodies = await answer_with(page, ["one", "two", "three", "four", "five"])
        await opened.say("A")
        await opened.until(f"{BODIES} === 'A|one'")
        await opened.answer()
        await opened.say("B")
        await opened.answer()
        await page.click(".turn.assistant:last-child [data-act=again]")
        await opened.until(f"{BODIES} === 'A|one|B|three'")
        await opened.answer()
        await page.hover(".turn.user >> nth=0")
        await page.click(".turn.user >> nth=0 >> [data-act=edit]")
        await page.fill(".turn textarea", "C")
        await page.press(".turn textarea", "Enter")
        await opened.until(f"{BODIES} === 'C|four'")
        await opened.answer()
        assert "2 of 2" in await page.inner_text(".turn.user .versions")
        await page.click("[data-act=older]")
        assert await page.evaluate(BODIES) == "A|one|B|three"
        await page.click(".turn.assistant:last-child [data-act=older]")
        assert await page.evaluate(BODIES) == "A|one|B|two"
        await page.reload()
        await page.wait_for_selector(".turn.assistant >> nth=1")
        assert await page.evaluate(BODIES) == "A|one|B|two"
        await page.wait_for_selector("#model option", state="attached")
        await opened.say("D")
        await opened.until(f"{BODIES} === 'A|one|B|two|D|five'")
        said = [one["content"] for one in bodies[-1]["messages"]]
        assert said == ["A", "one", "B", "two", "D"], "the open version goes to the cluster, and it alone"
        assert opened.wrong == []


async def test_versions_stay_with_a_stored_conversation_unless_it_went_on_elsewhere() -> None:
    async with opened_chat() as (gateway, opened):
        page, records = opened.page, gateway.fleet.sessions.records
        await answer_with(page, ["one", "two"])
        await opened.say("A")
        await opened.answer()
        await page.click(".turn.assistant [data-act=again]")
        await opened.until(f"{BODIES} === 'A|two'")
        await opened.answer()
        session_id = await page.evaluate("JSON.parse(sessionStorage.getItem('ryz.chat')).sessionId")
        stored = [ChatMessage(role="user", content="A"), ChatMessage(role="assistant", content="two")]

        async def open_again() -> None:
            records[TENANT, session_id] = SessionRecord(
                session_id=session_id, tenant=TENANT, model="demo", version=1, messages=stored
            )
            await page.click("#new-chat")
            await opened.until(f"{BODIES} === ''")
            await page.click("#sessions li:has-text('A') button.open")
            await page.wait_for_selector(".turn.assistant")

        await open_again()
        await page.click(".turn.assistant [data-act=older]")
        assert await page.evaluate(BODIES) == "A|one"
        stored += [ChatMessage(role="user", content="B"), ChatMessage(role="assistant", content="elsewhere")]
        await open_again()
        assert await page.evaluate(BODIES) == "A|two|B|elsewhere"
        assert await page.is_hidden(".turn.assistant:last-child .versions")


async def test_an_edit_that_is_refused_leaves_the_version_before_it() -> None:
    async with opened_chat() as (_, opened):
        page = opened.page
        await answer_with(page, ["one"])
        await opened.say("A")
        await opened.answer()
        await page.hover(".turn.user")
        await page.click("[data-act=edit]")
        await page.fill(".turn textarea", "Too much")
        await page.press(".turn textarea", "Enter")
        await page.wait_for_selector("#trouble:not([hidden])")
        await opened.until(f"{BODIES} === 'A|one'")
        assert await page.input_value("#composer-text") == "Too much"
        await page.fill("#composer-text", "")
        await page.click("[data-act=again]")
        await page.wait_for_selector("#trouble:not([hidden])")
        await opened.until(f"{BODIES} === 'A|one'")
        assert await page.locator(".versions:not([hidden])").count() == 0


async def test_code_has_its_language_colours_and_a_way_to_copy_it() -> None:
    async with opened_chat() as (_, opened):
        page = opened.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await answer_with(page, [PYTHON])
        await opened.say("A function")
        await opened.until(f"{KEYWORDS}.includes('def')")
        assert await page.locator(".code-head span").all_inner_texts() == ["python", "text"]
        code = 'def hello(name):\n    return f"Hello {name}"  # <b>\n'
        assert await page.text_content(".code pre >> nth=0") == code
        assert await page.locator(".code >> nth=1 >> pre span").count() == 0
        await page.click("[data-act=copy-code] >> nth=0")
        await page.wait_for_selector("[data-act=copy-code]:text-is('Copied') >> nth=0")
        assert await page.evaluate("navigator.clipboard.readText()") == code
        for theme in ("light", "dark"):
            await page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            assert await opened.serious_faults() == []
        assert opened.wrong == []


async def test_code_stays_plain_where_its_grammar_cannot_be_loaded() -> None:
    async with opened_chat() as (_, opened):
        refused = []

        async def refuse(route: Route) -> None:
            refused.append(route.request.url)
            await route.abort()

        await opened.page.route("**/vendor/highlight/**", refuse)
        await answer_with(opened.page, [PYTHON])
        await opened.say("A function")
        assert "def hello(name):" in await opened.answer()
        assert refused
        assert await opened.page.locator(".code pre span").count() == 0


async def test_an_answer_says_how_fast_it_came() -> None:
    slow = r"""
    const real = window.fetch;
    window.fetch = async (path, ...more) => {
        if (!String(path).endsWith("/v1/chat/completions")) return real(path, ...more);
        const clock = [1000, 1500, 3500];  // sent, first part, end
        let at = 0;
        Date.now = () => clock[Math.min(at, 2)];
        const text = (out, words) => out.enqueue(new TextEncoder().encode(words));
        const write = (out, chunk) => text(out, `id: 1\ndata: ${JSON.stringify(chunk)}\n\n`);
        const shown = () => document.querySelector(".turn.assistant .body")?.textContent.includes("Hello");
        const turn = () => new Promise((done) => setTimeout(done));
        return new Response(new ReadableStream({ async start(out) {
            at = 1;
            write(out, { choices: [{ index: 0, delta: { content: "Hello" } }] });
            while (!shown()) await turn();
            at = 2;
            write(out, { choices: [], usage: { completion_tokens: 41 } });
            text(out, "data: [DONE]\n\n");
            out.close();
        } }), { headers: { "content-type": "text/event-stream" } });
    };
    """
    async with opened_chat() as (_, opened):
        await opened.page.evaluate("Date.now = () => 1000;" + slow)
        await opened.say("Hello")
        await opened.answer()
        words = await opened.page.inner_text(".turn.assistant .meta")
        assert words == "41 tokens · 20 tokens/s · first after 0.5 s"


@pytest.mark.parametrize("width", [390, 1200])
async def test_an_empty_page_has_no_scrollbar_before_its_scripts_run(width: int) -> None:
    async with running_gateway() as gateway, chromium() as browser:
        context = await browser.new_context(viewport={"width": width, "height": 700})
        page = await context.new_page()
        await page.route("**/js/chat.js", lambda route: route.abort())
        await page.goto(gateway.url + "/")
        assert await page.evaluate(HEIGHTS) == [0, 0]
        await page.unroute_all()
        await page.reload()
        await page.wait_for_selector("#model option", state="attached")
        assert await page.evaluate(HEIGHTS) == [0, 0]
        await context.close()
