"""Reads some streamed completions side by side, with as little of the machine's time as can be.

One thread takes bytes from sockets and notes when they came; they are decoded when all answers have ended. An
answer that is not complete and right is an error.
"""

import json
import selectors
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import httptools

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.sse import StreamedAnswer, read_stream

_READ_BYTES = 1 << 16
_Parts = list[tuple[float, bytes]]


def stream_all(
    url: str, model: str, prompts: Sequence[Sequence[int]], tokens: int, limit_s: float
) -> tuple[list[StreamedAnswer], float]:
    """Ask for `tokens` tokens after each prompt, all at once and greedily, past every end of sequence.

    Returns:
        The answers in the order of the prompts, and the CPU seconds of this thread while it read.

    Raises:
        BenchError: An answer is not complete and right, or not within `limit_s` seconds.
    """
    used_s = time.thread_time()
    try:
        raw = _exchange(url, [_request(url, model, prompt, tokens) for prompt in prompts], limit_s)
    except OSError as error:
        raise BenchError(f"the connection to {url} broke: {error}") from error
    used_s = time.thread_time() - used_s
    return [_parse(sent, parts, tokens) for sent, parts in raw], used_s


def post(netloc: str, path: str, body: bytes, *headers: str) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    head = [f"POST {path} HTTP/1.1", f"Host: {netloc}", *headers, "Content-Type: application/json"]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _request(url: str, model: str, prompt: Sequence[int], tokens: int) -> bytes:
    body = {
        "model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return post(urlsplit(url).netloc, "/v1/completions", json.dumps(body).encode(), "Connection: close")


def _exchange(url: str, requests: Sequence[bytes], limit_s: float) -> list[tuple[float, _Parts]]:
    """Send all requests on connections of their own and read each until the server closes it."""
    address = urlsplit(url)
    found: list[tuple[float, _Parts]] = []
    deadline = time.perf_counter() + limit_s
    with selectors.DefaultSelector() as selector:
        sockets = []
        try:
            for _ in requests:
                sock = socket.create_connection((address.hostname, address.port), timeout=limit_s)
                sockets.append(sock)
            for sock, request in zip(sockets, requests, strict=True):
                parts: _Parts = []
                found.append((time.perf_counter(), parts))
                sock.sendall(request)
                selector.register(sock, selectors.EVENT_READ, parts)
            open_ones = len(sockets)
            while open_ones:
                ready = selector.select(deadline - time.perf_counter())
                now = time.perf_counter()
                if now > deadline:
                    raise BenchError(f"{open_ones} answers were not complete within {limit_s:g} s")
                for key, _ in ready:
                    data = key.fileobj.recv(_READ_BYTES)  # type: ignore[union-attr]  # our sockets
                    key.data.append((now, data))
                    if not data:
                        selector.unregister(key.fileobj)
                        open_ones -= 1
        finally:
            for sock in sockets:
                sock.close()
    return found


class _Body:
    """Takes the parser's pieces of a body, each with the time of the bytes that it was in."""

    def __init__(self) -> None:
        self.parts: _Parts = []
        self.complete = False
        self.now = 0.0

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.parts.append((self.now, body))

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = True


def _parse(sent: float, parts: _Parts, tokens: int) -> StreamedAnswer:
    body = _Body()
    parser = httptools.HttpResponseParser(body)
    try:
        for body.now, data in parts:
            parser.feed_data(data)
        status = parser.get_status_code() if parts else 0
    except httptools.HttpParserError as error:
        raise BenchError(f"an answer is not HTTP: {error}") from error
    if status != 200:
        said = b"".join(data for _, data in parts).partition(b"\r\n\r\n")[2]
        raise BenchError(f"an answer has status {status}: {said[:300].decode(errors='replace')}")
    found = read_stream(body.parts, sent)
    if not body.complete or not found.done:
        last = found.last[:300].decode(errors="replace")
        raise BenchError(f"an answer ended before its [DONE]: {last}")
    if found.tokens != tokens or not found.ended:
        raise BenchError(f"an answer has {found.tokens} tokens instead of {tokens}")
    return found
