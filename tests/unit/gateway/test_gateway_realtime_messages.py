"""The messages of `/v1/realtime`: what clients may send, and every kind that the gateway sends."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.gateway.transports.websocket import server_messages
from services.gateway.transports.websocket.client_messages import BadMessage, RequestMessage, read_message
from tests.kits.clients.stream_events import REALTIME_EVENTS

HEADERS = {b"x-request-id": b"r-1", b"x-stream-id": b"r-1", b"content-type": b"text/event-stream"}


def test_every_kind_of_message_is_documented() -> None:
    sent = [
        server_messages.ready("ada", {"requests": 4}),
        server_messages.accepted("a", 200, HEADERS),
        server_messages.event(b'"a"', "1.0", "delta", b'{"x": 1}'),
        server_messages.done("a"),
        server_messages.answer("a", 200, HEADERS, b'{"x": 1}'),
        server_messages.answer("a", 404, HEADERS, b'{"error": {}}'),
        server_messages.error(400, b'{"error": {}}', "a"),
        server_messages.cancelled("a"),
        server_messages.cut("a", "r-1"),
        server_messages.slow(1.5, 30.0),
        server_messages.PONG,
    ]
    read = [json.loads(text) for text in sent]
    assert {message["type"] for message in read} == REALTIME_EVENTS.keys()
    assert read[1]["headers"] == {"x-request-id": "r-1", "x-stream-id": "r-1"}
    assert read[2] == {"type": "event", "id": "a", "event_id": "1.0", "event": "delta", "data": {"x": 1}}
    assert read[5]["type"] == "error"
    page = (server_messages.__file__ or "").partition("/services/")[0] + "/docs/realtime.md"
    with open(page) as file:
        text = file.read()
    assert all(f"| `{kind}` |" in text for kind in REALTIME_EVENTS)


@given(st.text(min_size=1, max_size=64), st.dictionaries(st.text(), st.integers()))
def test_ids_and_bodies_are_taken_as_they_are(name: str, body: dict[str, int]) -> None:
    message = read_message(json.dumps({"type": "request", "id": name, "body": body}).encode())
    assert isinstance(message, RequestMessage)
    assert (message.id, json.loads(bytes(message.body)), message.path) == (name, body, "/v1/chat/completions")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(raw: bytes) -> None:
    # random bytes may begin with a literal of the source, such as the whole message of a ping
    assume(b'"ping"' not in raw)
    with pytest.raises(BadMessage) as bad:
        read_message(raw)
    assert bad.value.error.message


def test_the_id_of_a_wrong_message_is_reported() -> None:
    with pytest.raises(BadMessage) as bad:
        read_message(b'{"type": "request", "id": "a"}')
    assert bad.value.request_id == "a"
    with pytest.raises(BadMessage) as deep:
        read_message(b'{"type": "request", "id": "a", "body": ' + b"[" * 100_000)
    assert deep.value.request_id == ""
