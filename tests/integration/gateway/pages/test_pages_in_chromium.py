"""The pages in a real browser, before a gateway, a router and two groups as processes."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from tests.kits.pages.chromium import (
    BROWSER,
    COUNT_FRAMES,
    FRAMES_TO_TEXT,
    OpenPage,
    chromium,
    open_page,
)
from tests.kits.stacks.stream_stack import KEYS, Fleet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium"),
]
KEY = KEYS["one"]
TOKENS = 150
SETTINGS = json.dumps({"max_tokens": TOKENS, "seed": 7})
NASTY = """<script>window.ran=1</script><img src=x onerror="window.ran=2"><svg onload="window.ran=3"></svg>

[one](javascript:window.ran=4) <a href="javascript:window.ran=5">two</a> ![three](javascript:window.ran=6)
[four](data:text/html,<script>window.ran=7</script>) <iframe srcdoc="<script>parent.ran=8</script>"></iframe>
<style>body{display:none}</style> <form action="/x"><button>five</button></form>

[six](https://example.com)

```html
<script>window.ran=9</script>
```
<details open ontoggle="window.ran=10">**bold**"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("pages"), groups=2) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


async def whole_answer(fleet: Fleet, text: str) -> str:
    """The answer of the gateway to the same request, asked for in one piece."""
    said = [{"role": "user", "content": text}]
    body = {"model": "demo", "messages": said, "max_tokens": TOKENS, "seed": 7}
    async with httpx.AsyncClient(base_url=fleet.gateways[0], timeout=60) as http:
        answer = await http.post(
            "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}
        )
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def chat(
    browser: Browser, fleet: Fleet, theme: str = "light", script: str = ""
) -> AbstractAsyncContextManager[OpenPage]:
    url = fleet.gateways[0] + "/"
    return open_page(browser, url, key=KEY, settings=SETTINGS, theme=theme, script=script)


async def words(opened: OpenPage) -> list[str]:
    """The words of the last answer as the page keeps it."""
    talk = await opened.page.evaluate("JSON.parse(sessionStorage.getItem('ryz.chat'))")
    content: str = talk["messages"][-1]["content"]
    return content.split()


async def test_an_answer_is_shown_as_it_comes_and_goes_on_after_a_reload(
    browser: Browser, fleet: Fleet
) -> None:
    expected = (await whole_answer(fleet, "Tell me all.")).split()
    async with chat(browser, fleet, script=COUNT_FRAMES) as opened:
        page = opened.page
        await page.wait_for_selector("#model option", state="attached")
        await opened.say("Tell me all.")
        await opened.until("performance.getEntriesByName('ryz:first-text').length > 0")
        assert await page.evaluate(FRAMES_TO_TEXT) <= 2
        for _ in range(2):
            await page.reload()
            await page.wait_for_selector(".turn.assistant.busy")
        await opened.answer()
        assert await words(opened) == expected
        assert await page.locator(".turn").count() == 2
        assert opened.wrong == []


async def test_a_leader_is_killed_while_pages_are_open(browser: Browser, fleet: Fleet) -> None:
    expected = (await whole_answer(fleet, "Go on.")).split()
    cluster = open_page(browser, fleet.gateways[0] + "/cluster", key=KEY)
    async with cluster as view, chat(browser, fleet) as opened:
        await view.page.wait_for_selector("#models .group[data-state=ready] >> nth=1")
        ready = ".ranks li[data-state=ready][title^='rank 0, ready, ']"
        await view.page.wait_for_selector(ready, state="attached")
        await opened.say("Go on.")
        await opened.until("performance.getEntriesByName('ryz:first-text').length > 0")
        name = await view.until(
            "[...document.querySelectorAll('.group')].find(one =>"
            " one.querySelector('.meter.run b').textContent[0] === '1')?.querySelector('h4').textContent"
        )
        fleet.kill(f"group{name[1:]}")
        await view.page.wait_for_selector(f".group[data-state=lost] h4:text-is('{name}')")
        await view.page.wait_for_selector("#incidents li[data-kind=lost]")
        await view.page.wait_for_selector("#incidents li[data-kind=moved]")
        await opened.answer()
        assert await words(opened) == expected
        fleet.start_group(int(name[1:]))
        await view.page.wait_for_selector("#incidents li[data-kind=back]")
        await view.page.wait_for_selector("#models .group[data-state=ready] >> nth=1")
        assert (opened.wrong, view.wrong) == ([], [])


async def test_stop_edit_and_regenerate(browser: Browser, fleet: Fleet) -> None:
    async with chat(browser, fleet) as opened:
        page = opened.page
        await opened.say("First")
        await opened.until("performance.getEntriesByName('ryz:first-text').length > 0")
        await page.keyboard.press("Escape")
        await page.wait_for_selector(".broke:text-is('Stopped')")
        await fleet.until(lambda: fleet.running() == 0, "the stopped answer is no longer computed")
        await page.click("[data-act=again]")
        await page.click("#stop")
        await page.click("[data-act=edit]")
        await page.fill(".turn textarea", "Second")
        await page.press(".turn textarea", "Enter")
        await opened.answer()
        assert await page.inner_text(".turn.user .body") == "Second"
        assert await page.locator(".turn").count() == 2
        assert await words(opened) == (await whole_answer(fleet, "Second")).split()


async def test_a_message_with_script_runs_nothing(browser: Browser, fleet: Fleet) -> None:
    async def nasty(route: Route) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": NASTY, "reasoning": NASTY}}]}
        events = f"id: 1\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        await route.fulfill(body=events, content_type="text/event-stream")

    async with chat(browser, fleet) as opened:
        page = opened.page
        await page.route("**/v1/chat/completions", nasty)
        await opened.say(NASTY)
        text = await opened.answer()
        await page.locator(".turn.assistant a").last.wait_for()
        assert "<script>window.ran=1</script>" in text  # shown, not run
        tags = await page.evaluate(
            "[...new Set([...document.querySelectorAll('#messages .body *')].map(one => one.tagName))].sort()"
        )
        assert set(tags) <= {"A", "BR", "BUTTON", "CODE", "DIV", "P", "PRE", "SPAN", "STRONG"}
        names = "[...document.querySelectorAll('.code pre *')].flatMap((one) => one.getAttributeNames())"
        assert set(await page.evaluate(names)) <= {"class", "data-language", "data-coloured"}
        links = await page.evaluate(
            "[...document.querySelectorAll('.turn a')].map(one => one.getAttribute('href'))"
        )
        assert {link for link in links if link} == {"https://example.com"}
        for link in await page.locator(".turn a:not([href])").all():
            await link.click()
        assert await page.evaluate("window.ran") is None
        assert opened.wrong == []


async def test_tool_calls_are_folded(browser: Browser, fleet: Fleet) -> None:
    def event(function: dict[str, str]) -> str:
        delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
        return f"id: 1\ndata: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"

    async def calling(route: Route) -> None:
        parts = [
            {"name": "weather<b>", "arguments": ""},
            {"arguments": '{"place": '},
            {"arguments": '"<i>"}'},
        ]
        events = "".join(map(event, parts)) + "data: [DONE]\n\n"
        await route.fulfill(body=events, content_type="text/event-stream")

    async with chat(browser, fleet) as opened:
        page = opened.page
        await page.route("**/v1/chat/completions", calling)
        await opened.say("What is the weather?")
        await opened.answer()
        fold = page.locator(".turn.assistant details.fold:not([hidden])")
        assert await fold.locator("summary").inner_text() == "Calls weather<b>"
        assert not await fold.locator("pre").is_visible()
        await fold.locator("summary").click()
        assert await fold.locator("pre").inner_text() == '{\n  "place": "<i>"\n}'
        assert opened.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_serious_fault(browser: Browser, fleet: Fleet, theme: str) -> None:
    async with chat(browser, fleet, theme=theme) as opened:
        await opened.page.wait_for_selector("#model option", state="attached")
        assert await opened.serious_faults() == []
        await opened.say("Hello")
        await opened.page.wait_for_selector(".turn.assistant.busy")
        assert await opened.serious_faults() == []
        await opened.page.click("#open-settings")
        assert await opened.serious_faults() == []
    async with open_page(browser, fleet.gateways[0] + "/cluster", key=KEY, theme=theme) as view:
        await view.page.wait_for_selector("#models .group >> nth=1")
        assert await view.serious_faults() == []


async def test_without_a_key_the_pages_ask_for_one(browser: Browser, fleet: Fleet) -> None:
    async with open_page(browser, fleet.gateways[0] + "/", width=390) as opened:
        page = opened.page
        await page.fill("dialog input[name=key]", KEY)
        await page.click("dialog button[value=save]")
        await page.wait_for_selector("#model option", state="attached")
        assert await page.evaluate(
            "[localStorage.getItem('ryz.key'), sessionStorage.getItem('ryz.key')]"
        ) == [
            None,
            f'"{KEY}"',
        ]
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        await page.goto(fleet.gateways[0] + "/cluster")
        await page.wait_for_selector("#models .group >> nth=1")
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
