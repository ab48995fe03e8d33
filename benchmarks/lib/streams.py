"""Reads some streamed completions side by side, with as little of the machine's time as can be.

One thread takes bytes from sockets and notes when they came; what is in them is looked at when all is over.
An answer that is not what was asked for is an error. What is made of the times stands in `http_row.py`.
"""

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import msgspec

_READ_BYTES = 1 << 16


class StreamError(Exception):
    """An answer gave no figures; the text says why."""


@dataclass(slots=True)
class Streamed:
    """One answer. Times are on `time.perf_counter`'s clock, in seconds.

    times: of each piece of text, of which there is one for each token that completes a character.
    ended: when the finish reason came, which comes with the last token.
    tokens: how many there were, says the gateway.
    """

    sent: float
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class _Raw:
    """An answer's bytes as they came."""

    sent: float
    parts: list[tuple[float, bytes]] = field(default_factory=list)


class _Choice(msgspec.Struct):
    text: str
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk)


def stream_all(
    url: str, model: str, prompts: Sequence[Sequence[int]], tokens: int, limit_s: float
) -> tuple[list[Streamed], float]:
    """Asks for `tokens` tokens after each prompt, all at once and greedily, past every end of sequence.

    Returns the answers in the order of the prompts, and the CPU seconds of this thread.

    Raises:
        StreamError: an answer is not complete and right, or was not within `limit_s` seconds.
    """
    used_s = time.thread_time()
    try:
        raw = _exchange(url, [_request(url, model, prompt, tokens) for prompt in prompts], limit_s)
    except OSError as error:
        raise StreamError(f"the connection to {url} broke: {error}") from error
    used_s = time.thread_time() - used_s
    return [_parse(one, tokens) for one in raw], used_s


def _request(url: str, model: str, prompt: Sequence[int], tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _exchange(url: str, requests: Sequence[bytes], limit_s: float) -> list[_Raw]:
    """Sends all requests on connections of their own and reads each until the server closes it."""
    address = urlsplit(url)
    found: list[_Raw] = []
    deadline = time.perf_counter() + limit_s
    with selectors.DefaultSelector() as selector:
        sockets = []
        try:
            for _ in requests:
                sock = socket.create_connection((address.hostname, address.port), timeout=limit_s)
                sockets.append(sock)
            for sock, request in zip(sockets, requests, strict=True):
                raw = _Raw(time.perf_counter())
                sock.sendall(request)
                selector.register(sock, selectors.EVENT_READ, raw.parts)
                found.append(raw)
            open_ones = len(sockets)
            while open_ones:
                events = selector.select(deadline - time.perf_counter())
                now = time.perf_counter()
                if now > deadline:
                    raise StreamError(f"{open_ones} answers were not complete within {limit_s:g} s")
                for key, _ in events:
                    data = key.fileobj.recv(_READ_BYTES)  # type: ignore[union-attr]  # our sockets
                    key.data.append((now, data))
                    if not data:
                        selector.unregister(key.fileobj)
                        open_ones -= 1
        finally:
            for sock in sockets:
                sock.close()
    return found


class _Events:
    """Takes the parser's pieces of a body; gives each server-sent event with the time of its last byte."""

    def __init__(self) -> None:
        self.events: list[tuple[float, bytes]] = []
        self.complete = False
        self.now = 0.0
        self._rest = b""

    def on_body(self, body: bytes) -> None:
        """From the parser."""
        *whole, self._rest = (self._rest + body).split(b"\n\n")
        self.events += [(self.now, event.rpartition(b"\n")[2]) for event in whole]  # an id may stand before

    def on_message_complete(self) -> None:
        """From the parser."""
        self.complete = True


def _parse(raw: _Raw, tokens: int) -> Streamed:
    events = _Events()
    parser = httptools.HttpResponseParser(events)
    try:
        for events.now, data in raw.parts:
            parser.feed_data(data)
        status = parser.get_status_code() if raw.parts else 0
    except httptools.HttpParserError as error:
        raise StreamError(f"an answer is not HTTP: {error}") from error
    if status != 200:
        said = b"".join(data for _, data in raw.parts).partition(b"\r\n\r\n")[2]
        raise StreamError(f"an answer has status {status}: {said[:300].decode(errors='replace')}")
    if not events.complete or not events.events or events.events[-1][1] != b"data: [DONE]":
        last = events.events[-1][1] if events.events else b""
        raise StreamError(f"an answer ended before its [DONE]: {last[:300].decode(errors='replace')}")
    found = Streamed(raw.sent)
    for now, event in events.events[:-1]:
        _add(found, now, event)
    if found.tokens != tokens or not found.ended:
        raise StreamError(f"an answer has {found.tokens} tokens instead of {tokens}")
    return found


def _add(found: Streamed, now: float, event: bytes) -> None:
    try:
        chunk = _chunk.decode(event.removeprefix(b"data: "))
    except msgspec.DecodeError as error:
        raise StreamError(f"an event is no completion chunk: {error}") from error
    if chunk.usage is not None:
        found.tokens = chunk.usage.completion_tokens
    for choice in chunk.choices:
        if choice.text:
            found.times.append(now)
        if choice.finish_reason is not None:
            found.ended = now
