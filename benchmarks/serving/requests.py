"""The requests that the load generator sends: complete HTTP bytes, cut once and filled with a number each.

Every request has a user message of its own and no session id, so each is the root of a new conversation, and
the router spreads them over its groups.
"""

import json
import secrets
from itertools import count

_TOPICS = (
    "What is the tallest mountain of the country with the number",
    "Please explain in one sentence what happens in chapter",
    "Which colour has the house with the number",
    "How do I get from here to the station of line",
    "Write a line of verse about the year",
    "Who won the chess tournament with the catalogue number",
    "Is it cold in winter at the observatory called",
    "Name three tools that I need to repair engine",
)
_MARK = "@@@@@@@@@@@@@@@@@@@@"  # replaced by as many characters: the content length stays


class RequestMaker:
    """Makes request after request, none like another, at the cost of one bytes join."""

    def __init__(self, netloc: str, model: str, tokens: int, stream: bool) -> None:
        self._run = secrets.token_hex(4)
        self._numbers = count()
        self._halves = [_halves(netloc, model, tokens, stream, topic) for topic in _TOPICS]

    def next(self) -> bytes:
        """The next request, head and body."""
        number = next(self._numbers)
        before, after = self._halves[number % len(self._halves)]
        return b"%b%b%012d%b" % (before, self._run.encode(), number, after)


def _halves(netloc: str, model: str, tokens: int, stream: bool, topic: str) -> tuple[bytes, bytes]:
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{topic} {_MARK}?"}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    ).encode()
    before, after = payload.split(_MARK.encode())
    return head + before, after
