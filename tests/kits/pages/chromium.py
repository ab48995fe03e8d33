"""A page in the system's Chromium that remembers what went wrong in it, and axe-core's judgement of it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from tests.kits.waiting import PATIENCE_S

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # as root in a container, too

# Counts the frames of the page between the first event with text and the text on the screen. It is promised
# for the next one; how long that takes on a busy machine is the browser's.
COUNT_FRAMES = """
const tick = () => { performance.mark("frame"); requestAnimationFrame(tick); };
requestAnimationFrame(tick);
"""
FRAMES_TO_TEXT = """(() => {
    const at = (name) => performance.getEntriesByName(name)[0].startTime;
    const frames = performance.getEntriesByName("frame").map((one) => one.startTime);
    return frames.filter((time) => time > at("ryz:first-event") && time <= at("ryz:first-text")).length;
})()"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Runs the browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=_ARGS)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class OpenPage:
    """An open page.

    Attributes:
        page: Playwright's.
        wrong: Errors of scripts, and what the content security policy refused.
    """

    page: Page
    wrong: list[str] = field(default_factory=list)

    async def say(self, text: str) -> None:
        """Sends a message in the chat."""
        await self.page.fill("#composer-text", text)
        await self.page.press("#composer-text", "Enter")

    async def until(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Waits until an expression of the page is true, and returns it.

        Playwright's own wait needs `eval` inside the page, which the pages' security policy forbids.
        """
        async with asyncio.timeout(timeout_s):
            while not (value := await self.page.evaluate(expression)):  # noqa: ASYNC110 (the page tells nothing)
                await asyncio.sleep(0.02)
        return value

    async def answer(self, timeout_s: float = PATIENCE_S) -> str:
        """The text of the last answer, once it has ended."""
        await self.page.wait_for_selector("#stop", state="hidden", timeout=timeout_s * 1000)
        return str(await self.page.inner_text(".turn.assistant:last-child .body"))

    async def serious_faults(self) -> list[str]:
        """What axe-core finds, of impact serious or critical."""
        script = (files("axe_playwright_python") / "axe.min.js").read_text()
        await self.page.evaluate(script)
        found: dict[str, Any] = await self.page.evaluate(
            "axe.run(document, {resultTypes: ['violations'], rules: {'region': {enabled: true}}})"
        )
        return [
            f"{fault['id']}: {fault['nodes'][0]['html'][:120]} {fault['nodes'][0]['failureSummary'][:160]}"
            for fault in found["violations"]
            if fault["impact"] in {"serious", "critical"}
        ]


@asynccontextmanager
async def open_page(
    browser: Browser,
    url: str,
    *,
    key: str = "",
    settings: str = "{}",
    theme: str = "light",
    width: int = 1200,
    script: str = "",
) -> AsyncIterator[OpenPage]:
    """Opens a page in a profile of its own.

    Args:
        browser: The browser.
        url: Of the page.
        key: API key that was entered before; empty: none.
        settings: What the chat's settings were before, in JSON.
        theme: The theme that was chosen before.
        width: Of the window.
        script: Runs before those of each page.
    """
    context = await browser.new_context(viewport={"width": width, "height": 800})
    context.set_default_timeout(1000 * PATIENCE_S)
    page = await context.new_page()
    opened = OpenPage(page)
    page.on("pageerror", lambda error: opened.wrong.append(str(error)))
    page.on(
        "console",
        lambda message: opened.wrong.append(message.text) if "ontent Security" in message.text else None,
    )
    kept = {"ryz.settings": settings, "ryz.theme": theme} | ({"ryz.key": f'"{key}"'} if key else {})
    sets = "".join(f"localStorage.setItem({name!r}, {value!r});" for name, value in kept.items())
    await page.add_init_script(
        f"if (!sessionStorage.getItem('t')) {{ sessionStorage.setItem('t', 1); {sets} }} {script}"
    )
    try:
        await page.goto(url)
        yield opened
    finally:
        await context.close()
