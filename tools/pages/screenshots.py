"""Makes the pictures of the pages for the documentation, from a stack that runs.

`python -m tools.pages.screenshots URL [FOLDER]` needs a Chromium and a gateway without API keys. It talks to
the model in the chat, and takes both pages in both themes and at the width of a phone. With
`--admin-key FILE` it takes the page of tenants instead, while they are busy; the file has an admin's key.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parents[2] / "docs/images"
WIDTHS = {"": 1120, "-phone": 390}
SAYS = ("Give me three tips for better sleep.",)
SHARES_S = 3  # for which a page follows what is shown of busy groups
_SETTINGS = '{"temperature":0,"max_tokens":160}'
_BEFORE = "localStorage.setItem('ryz.theme', {theme!r}); localStorage.setItem('ryz.settings', {settings!r});"


def picture(
    browser: Browser, url: str, *, page_name: str, theme: str, width: str, admin_key: str = ""
) -> bytes:
    """Takes one picture, and returns it as PNG."""
    context = browser.new_context(viewport={"width": WIDTHS[width], "height": 720})
    page = context.new_page()
    page.add_init_script(_BEFORE.format(theme=theme, settings=_SETTINGS))
    page.goto(f"{url}/{'' if page_name == 'chat' else page_name}")
    if page_name == "chat":
        _chat(page)
    elif page_name == "admin":
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", admin_key)
        page.press("#key", "Enter")
        page.wait_for_selector("#shares tr")
        page.wait_for_timeout(SHARES_S * 1000)
    else:
        page.wait_for_selector("#groups .group")
        page.wait_for_timeout(SHARES_S * 1000)  # the line of the flow begins
    page.wait_for_timeout(300)
    taken = page.screenshot(full_page=page_name == "admin")
    context.close()
    return taken


def _chat(page: Page) -> None:
    page.wait_for_selector("#model option", state="attached")
    for text in SAYS:
        page.fill("#composer-text", text)
        page.press("#composer-text", "Enter")
        page.wait_for_selector(".turn.assistant:last-child .body > *")
        page.wait_for_selector("#stop", state="hidden")


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the gateway, such as http://127.0.0.1:8000")
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--admin-key", type=Path, help="file with an admin's key, such as .ryz/admin.key")
    arguments = parser.parse_args()
    key = arguments.admin_key.read_text().strip() if arguments.admin_key else ""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or "", args=["--no-sandbox", "--disable-gpu"]
        )
        for page_name in ("admin",) if key else ("chat", "cluster"):
            for theme in ("light", "dark"):
                for width in WIDTHS:
                    url = arguments.url.rstrip("/")
                    path = arguments.folder / f"{page_name}-{theme}{width}.png"
                    taken = picture(
                        browser, url, page_name=page_name, theme=theme, width=width, admin_key=key
                    )
                    path.write_bytes(taken)
                    print(path, path.stat().st_size)
        browser.close()


if __name__ == "__main__":
    main()
