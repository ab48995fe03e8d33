"""Turns of a chat over HTTP, greedy unless a test says otherwise."""

from typing import Any

import httpx


def post_turn(
    http: httpx.Client, text: str | list[dict[str, str]], session: str = "", **fields: Any
) -> httpx.Response:
    """Posts a user's text, or whole messages; `fields` are those of the body."""
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    body = {"model": "demo", "max_tokens": 24, "temperature": 0, "messages": messages, **fields}
    headers = {"X-Session-Id": session} if session else {}
    return http.post("/v1/chat/completions", json=body, headers=headers)


def said(answer: httpx.Response) -> str:
    """The text of an answer, which has to be a good one."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])
