"""How `ryz chat` reads an answer: events, broken connections, and when it gives up."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import httpx
import pytest

from cli.chat import answers
from cli.chat.answers import StreamPosition, read_answer, texts
from cli.console import CommandError
from cli.http_api import ChatApi


def event(data: object, name: str = "") -> str:
    value = data if isinstance(data, str) else json.dumps(data)
    return (f"id: {name}\n" if name else "") + f"data: {value}\n\n"


def piece(text: str, name: str = "") -> str:
    return event({"choices": [{"delta": {"content": text}}]}, name)


def lines(*parts: str) -> Iterator[bytes]:
    return (line.encode() for line in "".join(parts).splitlines(keepends=True))


def test_the_text_of_a_stream() -> None:
    position = StreamPosition()
    stream = lines(": a comment\n", event({"choices": []}), piece("a", "1.0"), piece("b", "2.0"))
    assert list(texts(stream, position)) == ["a", "b"]
    assert (position.last_id, position.done) == ("2.0", False)
    assert list(texts(lines(event("[DONE]", "3.0"), piece("c")), position)) == []
    assert (position.last_id, position.done) == ("3.0", True)


def test_a_stream_that_ends_for_its_length_is_cut() -> None:
    position = StreamPosition()
    last = event({"choices": [{"delta": {}, "finish_reason": "length"}]})
    assert list(texts(lines(piece("a"), last, event("[DONE]")), position)) == ["a"]
    assert (position.cut, position.done) == (True, True)


def test_an_event_that_broke_in_the_middle_does_not_count() -> None:
    position = StreamPosition("r-1")
    half = piece("b", "2.0")
    for size in range(len(half) - 1):
        assert list(texts(lines(piece("a", "1.0"), half[:size]), position)) == ["a"]
        assert position.last_id == "1.0"


def test_an_error_ends_it() -> None:
    position = StreamPosition("r-1")
    with pytest.raises(CommandError, match="group g0 was lost"):
        list(texts(lines(piece("a"), event({"error": {"message": "group g0 was lost"}})), position))
    assert position.stream_id == ""


class Gateway:
    """A scripted gateway that sends the rest of a stream on each connection.

    Attributes:
        cuts: One number for each connection: how many bytes it sends before it breaks. 0 sends all that is
            left. A negative number answers with that HTTP status, without its sign.
        named: Whether answers have the header X-Stream-Id.
        events: The whole stream.
        asked: The requests so far.
    """

    def __init__(self, *cuts: int, named: bool = True) -> None:
        self.cuts = list(cuts)
        self.named = named
        self.events = [piece(f"w{number} ", f"{number}.0") for number in range(1, 9)]
        self.events.append(event("[DONE]", "9.0"))
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.method == "DELETE":
            return httpx.Response(204)
        last = int(request.headers.get("last-event-id", "").partition(".")[0] or 0)
        cut = self.cuts.pop(0) if self.cuts else 0
        if cut < 0:
            return httpx.Response(-cut, json={"error": {"message": f"status {-cut}"}})
        data = "".join(self.events[last:]).encode()
        headers = {"X-Stream-Id": "r-1"} if self.named else {}

        def body() -> Iterator[bytes]:
            yield data[:cut] if cut else data
            if cut:
                raise httpx.ReadError("it broke")

        return httpx.Response(200, headers=headers, content=body())


def api_of(gateway: Callable[[httpx.Request], httpx.Response]) -> ChatApi:
    return ChatApi("http://gateway", "", transport=httpx.MockTransport(gateway))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FIRST_PAUSE_S", 0.0)


WHOLE = "".join(f"w{number} " for number in range(1, 9))


@pytest.mark.parametrize("cuts", [(), (1,), (70, 90, 1, 1, 1, 200), (200, -503, -502, 100)])
def test_a_broken_connection_costs_nothing_but_time(cuts: tuple[int, ...]) -> None:
    gateway = Gateway(*cuts)
    assert "".join(api_of(gateway).stream({"messages": []}, "s-1", StreamPosition())) == WHOLE
    assert [one.method for one in gateway.asked] == ["POST"] + ["GET"] * len(cuts)
    assert gateway.asked[0].headers["x-stream-grace"] == "15"
    assert all(one.url.path == "/v1/streams/r-1" for one in gateway.asked[1:])


def test_leaving_early_cancels_it() -> None:
    gateway = Gateway()
    with closing(api_of(gateway).stream({"messages": []}, "s-1", StreamPosition())) as pieces:
        assert next(pieces) == "w1 "
    last = gateway.asked[-1]
    assert (last.method, last.url.path) == ("DELETE", "/v1/streams/r-1")


@pytest.mark.parametrize(("cuts", "named", "words"), [
    ((100, -404), True, "status 404"),
    ((100, -410), True, "status 410"),
    ((-503,), True, "status 503"),
    ((100,), False, "No answer from"),
])  # fmt: skip
def test_what_cannot_be_resumed_is_said(cuts: tuple[int, ...], named: bool, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        list(api_of(Gateway(*cuts, named=named)).stream({"messages": []}, "s-1", StreamPosition()))


def test_it_gives_up_when_no_gateway_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "GRACE_S", 0.05)
    gateway = Gateway(100)
    pauses: list[float] = []

    def refused(stream_id: str, last_id: str) -> AbstractContextManager[Any]:
        if stream_id:
            raise httpx.ConnectError("no server there")
        return httpx.Client(transport=httpx.MockTransport(gateway)).stream("POST", "http://gateway/")

    with pytest.raises(CommandError, match="broke off"):
        list(read_answer(refused, lambda answer: None, StreamPosition(), sleep=pauses.append))
    assert pauses
