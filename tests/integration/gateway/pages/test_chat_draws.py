"""When the chat page draws, in a real browser before a scripted gateway."""

import pytest

from tests.kits.gateway.gateway import running_gateway
from tests.kits.pages.chromium import BROWSER, COUNT_FRAMES, FRAMES_TO_TEXT, chromium, open_page

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
SLOW_DRAWS = """
let late = 0;
const now = performance.now.bind(performance);
performance.now = () => now() + (late += 50);
"""
# an answer whose first chunk has the role only, and whose text comes later
LATE_TEXT = r"""
const real = window.fetch;
window.fetch = async (path, ...more) => {
    if (!String(path).endsWith("/v1/chat/completions")) return real(path, ...more);
    const write = (out, delta) => out.enqueue(new TextEncoder().encode(
        `id: 1\ndata: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\n\n`));
    const pause = () => new Promise((done) => setTimeout(done, 400));
    return new Response(new ReadableStream({ async start(out) {
        write(out, { role: "assistant", content: "" });
        await pause();
        write(out, { content: "Hello" });
        await pause();
        write(out, { content: " there" });
        out.enqueue(new TextEncoder().encode("data: [DONE]\n\n"));
        out.close();
    } }), { headers: { "content-type": "text/event-stream" } });
};
"""


async def test_the_first_text_waits_for_no_pause_after_an_empty_round() -> None:
    """Where drawing takes 50 ms each time, there are pauses between draws, but none before the first text."""
    async with (
        running_gateway() as gateway,
        chromium() as browser,
        open_page(browser, gateway.url + "/", script=COUNT_FRAMES) as opened,
    ):
        await opened.page.wait_for_selector("#model option", state="attached")
        await opened.page.evaluate(SLOW_DRAWS + LATE_TEXT)
        await opened.say("Hello")
        await opened.until("performance.getEntriesByName('ryz:first-text').length > 0")
        assert await opened.page.evaluate(FRAMES_TO_TEXT) <= 2
        assert (await opened.answer()).strip() == "Hello there"
