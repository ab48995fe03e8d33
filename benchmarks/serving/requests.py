"""The requests that the load generator sends: complete HTTP bytes, made once and filled with a number each.

Every request has a user message of its own and no session id, so each is the root of a new conversation, and
the router spreads them over its groups.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from itertools import count

from benchmarks.lib.streams import post

TOPICS = (
    "What is the tallest mountain of the country with the number",
    "Please explain in one sentence what happens in chapter",
    "Which colour has the house with the number",
    "How do I get from here to the station of line",
    "Write a line of verse about the year",
    "Who won the chess tournament with the catalogue number",
    "Is it cold in winter at the observatory called",
    "Name three tools that I need to repair engine",
)
NO_HEADERS: Mapping[str, str] = {}
MARK = "@@@@@@@@@@@@@@@@@@@@"  # replaced by as many characters, so that the content length stays


class NumberedRequests:
    """Makes requests of which no two are alike, each at the cost of one bytes join.

    Args:
        encoded: Encodes a request whose user message has this content.
    """

    def __init__(self, encoded: Callable[[str], bytes]) -> None:
        self._run = secrets.token_hex(4).encode()
        self._numbers = count()
        self._halves = [encoded(f"{topic} {MARK}?").partition(MARK.encode())[::2] for topic in TOPICS]

    def next(self) -> bytes:
        """Return the next request."""
        number = next(self._numbers)
        before, after = self._halves[number % len(self._halves)]
        return b"%b%b%012d%b" % (before, self._run, number, after)


def http_requests(
    netloc: str, model: str, tokens: int, stream: bool, headers: Mapping[str, str] = NO_HEADERS
) -> NumberedRequests:
    """Makes requests of `/v1/chat/completions`, head and body."""
    more = [f"{name}: {value}" for name, value in headers.items()]
    body: dict[str, object] = {"model": model, "max_tokens": tokens, "ignore_eos": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}

    def encoded(content: str) -> bytes:
        messages = [{"role": "user", "content": content}]
        return post(netloc, "/v1/chat/completions", json.dumps(body | {"messages": messages}).encode(), *more)

    return NumberedRequests(encoded)
