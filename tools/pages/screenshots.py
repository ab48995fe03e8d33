"""Makes the pictures of the pages for the documentation: `python -m tools.pages.screenshots [FOLDER]`.

It starts a stack of its own with a small real model, talks to it in the chat, loses a group under load, and
lets two tenants compete; each page is taken light and dark, wide and as narrow as a phone. It needs a
Chromium. A busy machine shows lower rates and nothing else.
"""

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tools.pages.picture_stack import PictureStack, picture_stack

IMAGES = Path(__file__).parents[2] / "docs/images"
THEMES = ("light", "dark")
HEIGHT = 720
WIDTHS = {"": 1120, "-phone": 390}
LOAD_S = 20  # of load that a live page shows
MOVED_S = 1.5  # in which the requests of a lost group go on elsewhere
WAIT_MS = 180_000
SAYS = ("Give me three tips for better sleep.", "Write a Python function that adds two numbers.")
_SETTINGS = '{"temperature":0,"max_tokens":140}'
_BEFORE = "localStorage.setItem('ryz.theme', {theme!r}); localStorage.setItem('ryz.settings', {settings!r});"


@contextmanager
def opened(browser: Browser, url: str, theme: str, width: str) -> Iterator[Page]:
    """A page in a profile of its own."""
    size: ViewportSize = {"width": WIDTHS[width], "height": HEIGHT}
    context = browser.new_context(viewport=size, reduced_motion="reduce")  # nothing is caught half-way
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.add_init_script(_BEFORE.format(theme=theme, settings=_SETTINGS))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()


def save(page: Page, folder: Path, name: str, *, full: bool) -> None:
    """Takes a picture of a page."""
    path = folder / f"{name}.png"
    page.screenshot(path=path, full_page=full)
    print(path, path.stat().st_size)


def take_chats(browser: Browser, stack: PictureStack, folder: Path) -> None:
    """A conversation with code, beside those before it."""
    stack.remember()
    with opened(browser, stack.url, THEMES[0], "") as page:
        page.wait_for_selector("#model option", state="attached")
        for text in SAYS:
            page.click("#new-chat")
            page.fill("#composer-text", text)
            page.press("#composer-text", "Enter")
            page.wait_for_selector(".turn.assistant .meta:has-text('tokens')")
        for theme in THEMES:
            page.set_viewport_size({"width": WIDTHS[""], "height": HEIGHT})
            while page.inner_text("#theme") != f"Theme: {theme}":
                page.click("#theme")
            for width, pixels in WIDTHS.items():
                page.set_viewport_size({"width": pixels, "height": HEIGHT})
                save(page, folder, f"chat-{theme}{width}", full=False)


def take_live_pages(browser: Browser, stack: PictureStack, folder: Path, name: str, key: str = "") -> None:
    """All forms of a page at the same time, so that all show the same moment.

    Args:
        browser: The browser.
        stack: The stack.
        folder: Where pictures go.
        name: `cluster`: the leader of a busy group is killed before; `admin`.
        key: That is entered where the page asks for one.
    """
    with ExitStack() as exits:
        pages = {
            f"{name}-{theme}{width}": exits.enter_context(
                opened(browser, f"{stack.url}/{name}", theme, width)
            )
            for theme in THEMES
            for width in WIDTHS
        }
        for page in pages.values():
            if key:
                page.fill("#key", key)
                page.press("#key", "Enter")
            page.wait_for_selector("#shares tr" if key else "#models .group >> nth=1")
        next(iter(pages.values())).wait_for_timeout(LOAD_S * 1000)
        if not key:
            stack.kill_busiest_leader()
            for page in pages.values():
                page.wait_for_selector("#incidents li[data-kind=lost]")
            page.wait_for_timeout(MOVED_S * 1000)
        for file, page in pages.items():
            save(page, folder, file, full=True)


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stack ends with this process
    with picture_stack() as stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or "", args=["--no-sandbox", "--disable-gpu"]
        )
        take_chats(browser, stack, folder)
        stack.begin_load()
        take_live_pages(browser, stack, folder, "cluster")
        stack.end_load()
        keys = []
        for tenant, weight in (("acme", "2"), ("lab", "1")):
            stack.run("tenants", "create", tenant, "--weight", weight, "--requests-per-minute", "600")
            keys.append(stack.run("keys", "create", "--tenant", tenant, "--label", "website")["key"])
        for key in keys:
            stack.begin_load(key)
        take_live_pages(browser, stack, folder, "admin", stack.admin_key())
        browser.close()


if __name__ == "__main__":
    main()
