"""Malformed requests on every route of a gateway get the answers that the API documents.

An error has the shape of the route's API, OpenAI's or Anthropic's. A stream ends as its API says, or with an
error event. The only 5xx answers are those listed in `MEANT`, such as 504 for a request with a very short
deadline.
"""

import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.kits.chaos.figures import record
from tests.kits.chaos.fuzz.fuzz_requests import KNOWN_STREAMS, Request, documented, ours, sound
from tests.kits.chaos.fuzz.fuzz_watch import Watch
from tests.kits.chaos.rounds import each_of
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(600, 14_400))
NUM_REQUESTS = scaled(200, 100_000)
CHECKS = scaled(2, 20)
SOUND_EVERY = 9  # requests; between them a sound one, which is answered: all of them in a short run
ANSWER_S = 45.0  # longest wait for an answer; request deadlines are shorter
ENDS = {f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled")} | {"message_stop"}
MEANT = {
    503: frozenset({"no_host"}),  # models are managed where hosts load them, and this stack's does not
    504: frozenset({"deadline_exceeded"}),  # the deadline in the request's body or header
}


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Browser:
    """Sends requests unchanged, on one connection as long as the gateway keeps it open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._address = parts.hostname, parts.port
        self._socket: socket.socket | None = None

    def send(self, request: Request) -> Answer | None:
        """Sends a request.

        Returns:
            The answer. None if the connection was closed without an answer, or during it after a cut request.
        """
        kept = self._socket is not None
        try:
            return self._send(request)
        except http.client.IncompleteRead:
            self.close()
            if request.cut:  # after its FIN a client counts as gone, as for most servers
                return None
            raise
        except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
            self.close()
            if kept:  # the gateway closed the idle connection: retry on a new one
                return self.send(request)
            return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, request: Request) -> Answer | None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, ANSWER_S)
        self._socket.sendall(request.wire())
        if request.cut:
            self._socket.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(self._socket, method=request.method) as response:
            response.begin()
            answer = Answer(response.status, response.headers, response.read())
            if (
                response.will_close
                or request.cut
                or request.method in {"CONNECT", "HEAD"}
                or answer.status >= 400
            ):
                self.close()
        return answer


# codes of `shared/web/faults.py`: refusals of the HTTP server, which knows no routes
BEFORE_ROUTING = {
    "malformed_http", "ambiguous_request", "http_version", "headers_timeout", "headers_too_large",
    "too_many_headers", "uri_too_long", "chunk_overhead", "pipelined",
    "address_connections", "connections", "partial_headers",
}  # fmt: skip


def check_error(raw: Any, path: bytes) -> None:
    """Checks that an error has the shape of the API of its path."""
    before_routing = isinstance(raw.get("error"), dict) and raw["error"].get("code") in BEFORE_ROUTING
    if path.startswith(b"/v1/messages") and not before_routing:
        assert {"type", "error"} <= set(raw) <= {"type", "error", "request_id"}
        assert raw["type"] == "error"
        assert set(raw["error"]) >= {"type", "message"}
        assert 0 < len(raw["error"]["message"]) < 5000
        return
    assert set(raw) == {"error"}
    error = raw["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(error["message"]) < 5000
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert isinstance(error["code"], str)


def check_events(body: bytes, path: bytes) -> None:
    """Checks that every event is JSON, and that the last one is an end or an error."""
    texts = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    if texts[-1] == "[DONE]" and not path.startswith(b"/v1/messages"):
        texts.pop()
        ended = True
    else:
        ended = False
    events = [json.loads(text) for text in texts]
    assert all(isinstance(event, dict) for event in events)
    kind = events[-1].get("type", "")
    if ended or kind in ENDS:
        return
    if kind == "error" and "error" not in events[-1]:  # of a response
        assert events[-1]["message"]
        return
    check_error(events[-1], path)
    assert events[-1]["error"].get("code") != "internal", events[-1]


def check(request: Request, answer: Answer) -> None:
    status, headers, body = answer
    kind = headers.get("content-type", "")
    if status >= 500:
        assert status in MEANT
        assert headers["x-ryz-reason"] in MEANT[status]
    if request.method == "HEAD" or status in {204, 304}:
        assert body == b""
    elif status >= 400:
        check_error(json.loads(body), request.target)
        assert kind == "application/json"
    elif kind.startswith("text/event-stream"):
        check_events(body, request.target)
    elif kind == "application/json":
        json.loads(body)


def with_names(request: Request, streams: list[str]) -> Request:
    """Replaces a placeholder such as `@3` by the id of the third latest stream."""
    match = re.search(rb"/@(\d+)", request.target)
    if match is None or int(match[1]) > len(streams):
        return request
    return request._replace(
        target=request.target.replace(match[0], b"/" + streams[int(match[1]) - 1].encode())
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups with null engines; a request's deadline is at most 30 s."""
    env = {
        "RYZ_RETENTION_S": "2",
        "RYZ_MAX_TIMEOUT_S": "30",
        "RYZ_DEFAULT_TIMEOUT_S": "30",
        "RYZ_BODY_TIMEOUT_S": "5",
        "RYZ_STREAM_ATTACH_TIMEOUT_S": "0.05",
    }
    with Stack(tmp_path_factory.mktemp("fuzz-http"), "--engine", "null", "--routers", "2", env=env) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def test_every_request_is_answered_as_the_api_says(stack: Stack) -> None:
    url = stack.state.url
    watch, browser = Watch(stack), Browser(url)
    seen: Counter[int] = Counter()
    streams: list[str] = []
    answered: list[Request] = []
    right = cycle(sound())

    wanted = documented(httpx.get(f"{url}/openapi.json").json()) | ours()

    def send(request: Request) -> None:
        answer = browser.send(with_names(request, streams))
        if answer is None:
            assert request.cut or not request.body or len(request.body) > 2**20, request
            seen[0] += 1
        else:
            check(request, answer)
            seen[answer.status] += 1
            if name := answer.headers.get("x-stream-id"):
                streams[:] = [name, *streams[: KNOWN_STREAMS - 1]]
        if seen.total() % SOUND_EVERY == 0:
            asked = next(right)
            found = browser.send(asked)
            assert found is not None, asked
            assert found.status == 200, (asked, found)
            check(asked, found)
            answered.append(asked)
        if seen.total() % (NUM_REQUESTS // CHECKS) == 0:
            watch.check()

    try:
        each_of(wanted, NUM_REQUESTS, send)
    finally:
        browser.close()
        answers = {str(status) if status else "closed": count for status, count in sorted(seen.items())}
        record("fuzz_http", requests=seen.total(), sound=len(answered), answers=answers)
    assert seen.total() == NUM_REQUESTS
    assert len(answered) == NUM_REQUESTS // SOUND_EVERY
    watch.check_at_rest()
