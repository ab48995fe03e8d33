"""A server at the gateway's address may not be a gateway; its answers end a command with a clear error."""

import json
from collections.abc import Callable
from typing import TypeVar

import httpx
import pytest

from cli.chat.answers import EventError, StreamPosition, texts
from cli.console import CommandError
from cli.http_api import ChatApi, HttpApi
from cli.sessions.api import SessionsApi

Ask = Callable[[SessionsApi], object]
Api = TypeVar("Api", bound=HttpApi)
MESSAGE = "does not answer as a gateway of this version does.*--url"


def answering(kind: type[Api], content: bytes, headers: dict[str, str] | None = None) -> Api:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=content, headers=headers)

    return kind("http://127.0.0.1:9", "", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"words", b"[]", b"null", b"{}", b"\xff\xfe",
        b'{"object":"list","data":[{"id":"demo"}],"choices":[]}',
        b'{"object":"list","data":[{}],"has_more":false,"next_cursor":null}',
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "ask",
    [
        lambda api: api.newest(50), lambda api: api.create({}), lambda api: api.show("s", messages=True),
        lambda api: api.pin("s", "g0"), lambda api: api.unpin("s"), lambda api: api.move("s", "g0"),
        lambda api: api.import_file(b"{}", "", replace=False),
    ],
)  # fmt: skip
def test_answers_of_another_shape_are_reported(ask: Ask, content: bytes) -> None:
    with pytest.raises(CommandError, match=MESSAGE):
        ask(answering(SessionsApi, content))


def test_bytes_that_cannot_be_unpacked_are_reported() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(b"no gzip"), headers={"Content-Encoding": "gzip"})

    api = SessionsApi("http://127.0.0.1:9", "", transport=httpx.MockTransport(answer))
    with pytest.raises(CommandError, match=MESSAGE):
        api.newest(50)


@pytest.mark.parametrize(
    ("code", "path", "words"),
    [
        ("missing_api_key", "/v1/models", "^The gateway takes no request without an API key: give one with"),
        ("invalid_api_key", "/v1/models", "^Not known: give one with `--api-key` or RYZ_API_KEY; `ryz keys"),
        (
            "missing_api_key",
            "/v1/manage/tenants/a/erase",
            "^This needs an admin's key: .*STATE_DIR/admin.key.*RYZ_API_KEY",
        ),
    ],
)
def test_a_missing_key_is_told_with_the_options_of_commands(code: str, path: str, words: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": "not known", "code": code}})

    with pytest.raises(CommandError, match=words):
        HttpApi("http://127.0.0.1:9", "", transport=httpx.MockTransport(answer)).ask("GET", path)


@pytest.mark.parametrize("models", ["words", "[]", "{}", '{"data": 5}', '{"data": [{}]}', '{"data": ["x"]}'])
def test_models_of_another_shape_are_reported(models: str) -> None:
    with pytest.raises(CommandError, match=MESSAGE):
        answering(ChatApi, models.encode()).models()


@pytest.mark.parametrize(
    "event", ["words", "[]", "5", '{"choices": 5}', '{"choices": ["x"]}', '{"error": 5}']
)
def test_events_of_another_shape_are_reported(event: str) -> None:
    with pytest.raises(EventError):
        list(texts([f"data: {event}\n\n".encode()], StreamPosition()))
    with pytest.raises(CommandError, match=MESSAGE):
        list(answering(ChatApi, f"data: {event}\n\n".encode()).stream({}, "s", StreamPosition()))


def test_pieces_that_are_no_text_are_reported() -> None:
    event = json.dumps({"choices": [{"delta": {"content": 5}}]})
    with pytest.raises(CommandError, match=MESSAGE):
        list(answering(ChatApi, f"data: {event}\n\n".encode()).stream({}, "s", StreamPosition()))
