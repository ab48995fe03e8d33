"""`/v1/realtime`: every route on one WebSocket, resumption, cancellation, and wrong messages."""

import base64
from typing import Any

from tests.contract.corpus.exchange import Later, table
from tests.contract.corpus.senders.websocket import Closed, Socket, Until
from tests.contract.corpus.tables.bodies import (
    CITY,
    EMBEDDINGS,
    IDS,
    JSON,
    LIMIT_S,
    MESSAGES,
    RESPONSES,
    TEXT,
    TOOLS,
    chat,
    message,
    response,
    text,
)

_READY = Until(("ready",))
_END = Until(("done", "answer", "error", "cut", "cancelled"))


def ask(body: Any, name: str = "a", **fields: Any) -> JSON:
    """A request of a connection."""
    return {"type": "request", "id": name, "body": body} | fields


def asked(*requests: Any, **options: Any) -> Socket:
    """A connection on which requests follow one another.

    Each gets an id of its own: for a moment after its answer, an id may still count as running.
    """
    acts: list[Any] = [_READY]
    for number, request in enumerate(requests):
        repeated = isinstance(request, dict) and number and request.get("type") == "request"
        acts += [request | {"id": f"a{number}"} if repeated else request, _END]
    return Socket(acts, **options)


def resumed(last: str) -> Later:
    """Resumes the stream of the first connection on another one."""

    def made(heard: list) -> Socket:  # type: ignore[type-arg]
        accepted = next(line for line in heard[0].lines if '"accepted"' in line)
        stream = accepted.partition('"x-stream-id":"')[2].partition('"')[0]
        return asked({"type": "resume", "id": "b", "stream_id": stream, "last_event_id": last})

    return made


_KEY = base64.urlsafe_b64encode(b"key-of-realtime").rstrip(b"=").decode()
TABLE = table(
    "realtime",
    {
        "a chat": asked(ask(chat())),
        "a chat, streamed": asked(ask(chat(stream=True))),
        "two in turn": asked(ask(chat()), ask(chat(stream=True), "b")),
        "usage": asked(ask(chat(stream=True, stream_options={"include_usage": True}))),
        "event ids": asked(ask(chat(**IDS))),
        "two choices": asked(ask(chat(n=2, stream=True))),
        "log probabilities": asked(ask(chat(logprobs=True, stream=True))),
        "a schema": asked(ask(chat(guided_json=CITY, max_tokens=40))),
        "calls": asked(
            ask(chat(model="calls", tools=TOOLS)), ask(chat(model="calls", tools=TOOLS, stream=True))
        ),
        "reasoning": asked(ask(chat(model="thinks", stream=True))),
        "token ids": asked(ask({"model": "demo", "prompt_token_ids": [0, 5], "max_tokens": 3})),
        "an answer that goes on": asked(
            ask(
                chat(
                    messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}],
                    continue_final_message=True,
                )
            )
        ),
        "fields that are left out": asked(
            ask(chat(frobnicate=1, speed="fast")), ask(chat(frobnicate=1, stream=True))
        ),
        "another name of the model": asked(ask(chat(model="gpt-5"))),
        "texts": asked(
            ask(text(), path=TEXT),
            ask(text(stream=True), path=TEXT),
            ask(text(prompt=["One", "Two"]), path=TEXT),
        ),
        "messages": asked(ask(message(), path=MESSAGES), ask(message(stream=True), path=MESSAGES)),
        "a count": asked(
            ask(
                {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
                path=f"{MESSAGES}/count_tokens",
            )
        ),
        "responses": asked(
            ask(response(), path=RESPONSES), ask(response(stream=True, store=False), path=RESPONSES)
        ),
        "an embedding": asked(ask({"model": "demo", "input": "Hello", "dimensions": 3}, path=EMBEDDINGS)),
        "tokens": asked(
            ask({"model": "demo", "prompt": "Hello"}, path="/tokenize"),
            ask({"model": "demo", "tokens": [300]}, path="/detokenize"),
        ),
        "a session of the connection": asked(
            ask(chat()), ask(chat(stream=True)), headers={"X-Session-Id": "tea"}
        ),
        "a session by message": Socket(
            [
                _READY,
                {"type": "session", "session_id": "milk"},
                ask(chat()),
                _END,
                {"type": "session", "session_id": ""},
                ask(chat(), "b"),
                _END,
            ]
        ),
        "a session of the request": asked(
            ask(chat(), headers={"X-Session-Id": "rice"}), ask(chat(session_id="rice"))
        ),
        "conditions of a session": asked(
            ask(chat(), headers={"X-Session-Id": "none", "X-Session-Must-Exist": "true"}),
            ask(chat(), headers={"X-Session-Id": "new", "If-None-Match": "*"}),
            ask(chat(), headers={"X-Session-Id": "new", "If-None-Match": "*"}),
            ask(chat(), headers={"X-Session-Id": "new", "If-Match": '"1"'}),
        ),
        "a repeat": asked(*[ask(chat(), headers={"Idempotency-Key": "k1"})] * 2),
        "a repeat with another body": asked(
            ask(chat(), headers={"Idempotency-Key": "k2"}), ask(chat(n=2), headers={"Idempotency-Key": "k2"})
        ),
        "a repeat, streamed": asked(*[ask(chat(stream=True), headers={"Idempotency-Key": "k3"})] * 2),
        "resumed": [asked(ask(chat(stream=True))), resumed("2.0"), resumed("")],
        "a text resumed": [asked(ask(text(stream=True), path=TEXT)), resumed("1.0")],
        "messages resumed": [asked(ask(message(stream=True), path=MESSAGES)), resumed("3.0")],
        "resumed after an event that never came": [asked(ask(chat(stream=True))), resumed("99.0")],
        "no such stream": asked({"type": "resume", "id": "b", "stream_id": "r-000000000000000000000000"}),
        "a wrong name of a stream": asked({"type": "resume", "id": "b", "stream_id": "../x"}),
        "cancelled": Socket([_READY, ask(chat(model="stuck")), {"type": "cancel", "id": "a"}, _END]),
        "a stream that is cancelled": Socket(
            [
                _READY,
                ask(chat(model="begins", stream=True)),
                Until(("event",), 2),
                {"type": "cancel", "id": "a"},
                _END,
            ]
        ),
        "a time limit": asked(ask(chat(model="stuck"), headers={"X-Request-Timeout": str(LIMIT_S)})),
        "a fault in the middle": asked(ask(chat(model="breaks", stream=True))),
        "a late refusal": asked(
            ask(chat(model="refuses-late")), ask(chat(model="refuses-late", stream=True))
        ),
        "a full group": asked(ask(chat(model="full"))),
        "an unknown model": asked(ask(chat(model="nobody")), ask(message(model="nobody"), path=MESSAGES)),
        "wrong bodies": asked(
            ask({"model": "demo", "messages": "no"}),
            ask([]),
            ask({"model": "demo"}, path=MESSAGES),
            ask(chat(max_tokens=0)),
        ),
        "wrong messages": asked(
            "{",
            b"\xff\xfe",
            "[]",
            '{"type": "none"}',
            '{"type": "request", "id": "a"}',
            '{"type": "request", "id": "", "body": {}}',
            ask({}, path="/v1/sessions"),
            ask({}, headers={"Authorization": "x"}),
            ask({}, headers={"X-A": "a\r\nb"}),
            ask({}, headers={"X-Session-Id": "a", "x-session-id": "b"}),
            {"type": "cancel", "id": "a"},
            {"type": "auth", "api_key": "k"},
            {"type": "ping", "more": 1},
        ),
        "a session of a wrong name": Socket(
            [_READY, {"type": "session", "session_id": "two words"}, ask(chat()), _END]
        ),
        "a ping": Socket([_READY, {"type": "ping"}, Until(("pong",))]),
        "an id that runs": Socket(
            [
                _READY,
                ask(chat(model="stuck")),
                ask(chat()),
                Until(("error",)),
                {"type": "cancel", "id": "a"},
                _END,
            ]
        ),
        "the key in a subprotocol": asked(
            ask(chat()), key="", subprotocols=["ryz.realtime.v1", f"ryz.key.{_KEY}"]
        ),
        "the key in a message": Socket(
            [{"type": "auth", "api_key": "key-of-realtime"}, _READY, ask(chat()), _END], key=""
        ),
        "a wrong key in a message": Socket([{"type": "auth", "api_key": "key-of-nobody"}, Closed()], key=""),
        "a request before the key": Socket([ask(chat()), Closed()], key=""),
        "a wrong key": Socket([], key="key-of-nobody"),
        "a client of OpenAI's Realtime API": Socket([Closed()], path="/v1/realtime?model=gpt-realtime"),
    },
    side_by_side=True,
)
