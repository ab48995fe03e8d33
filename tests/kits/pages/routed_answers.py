"""Answers of a chat that a test writes itself, in place of the gateway's."""

import json
from collections.abc import Iterable
from typing import Any

from playwright.async_api import Page, Route


def event(delta: dict[str, Any] | None = None, **fields: Any) -> str:
    """One event of a stream, with a part of the answer or with other fields, such as its usage."""
    choices = [] if delta is None else [{"index": 0, "delta": delta}]
    chunk: dict[str, Any] = {"choices": choices} | fields
    return f"id: 1\ndata: {json.dumps(chunk)}\n\n"


async def answer_with(page: Page, texts: Iterable[str], *, stored: str = "stored") -> list[dict[str, Any]]:
    """Answers each question with the next text, and with an error once there is none.

    Args:
        page: The page that asks.
        texts: The answers.
        stored: What becomes of each turn.

    Returns:
        The bodies of the requests as they come.
    """
    rest, bodies = iter(texts), list[dict[str, Any]]()

    async def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        text = next(rest, None)
        if text is None:
            error = {"error": {"message": "there is no answer to this", "code": "invalid_request"}}
            await route.fulfill(status=400, json=error)
            return
        usage = {"completion_tokens": len(text.split())}
        await route.fulfill(
            body=event({"content": text})
            + event(usage=usage, session={"stored": stored})
            + "data: [DONE]\n\n",
            content_type="text/event-stream",
        )

    await page.route("**/v1/chat/completions", answer)
    return bodies
