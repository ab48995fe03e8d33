"""HTTP/1.1 over a bare connection, so that headers are recorded in the order and case in which they came."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11

from tests.contract.corpus.exchange import Address, Heard
from tests.kits.waiting import PATIENCE_S

EVENTS = "text/event-stream"
MANY = 1000


@dataclass(frozen=True)
class Http:
    """A request over HTTP.

    Attributes:
        path: With the query.
        body: Is sent as JSON unless it is bytes; None: no body.
        method: Empty: `POST` with a body, else `GET`.
        headers: More headers, in their order; a value of None leaves one out that is sent otherwise.
        key: The API key; None: the key of the table's tenant; empty: no key.
        take: The connection is closed after so many server-sent events; 0: the answer is read to its end.
        until: The request is sent again until this holds; only the last answer is recorded.
        by_choice: The events of the answer are recorded choice by choice: those of several prompts come as
            they are ready, in an order between prompts that nothing fixes.
        gateway: `main` or `tight`.
    """

    path: str
    body: Any = None
    method: str = ""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    key: str | None = None
    take: int = 0
    until: Callable[[Heard], bool] | None = None
    by_choice: bool = False
    gateway: str = "main"

    async def send(self, address: Address, key: str) -> Heard:
        """See `Request`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                heard = await self._send_once(address.http_port, key)
                if self.until is None or self.until(heard):
                    return heard
                await asyncio.sleep(0.05)

    async def _send_once(self, port: int, key: str) -> Heard:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            method, head, body = self._request(port, key)
            with suppress(ConnectionError):  # a refusal may come before the whole body was sent
                writer.write(head + body)
                await writer.drain()
            return await self._read(reader, method)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _request(self, port: int, key: str) -> tuple[str, bytes, bytes]:
        body = self.body if isinstance(self.body, bytes) else b""
        if self.body is not None and not isinstance(self.body, bytes):
            body = json.dumps(self.body).encode()
        method = self.method or ("POST" if self.body is not None else "GET")
        bearer = key if self.key is None else self.key
        fields: dict[str, str | None] = {"Host": f"127.0.0.1:{port}"}
        if bearer:
            fields["Authorization"] = f"Bearer {bearer}"
        if self.body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        fields |= self.headers
        lines = [f"{method} {self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
        return method, "\r\n".join([*lines, "", ""]).encode("utf-8"), body

    async def _read(self, reader: asyncio.StreamReader, method: str) -> Heard:
        connection = h11.Connection(our_role=h11.CLIENT)
        # what the parser needs to know of the request: to HEAD there is no body
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        connection.send(h11.EndOfMessage())
        heard = Heard([f"> {method} {self.path}"])
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await reader.read(65_536)
                except ConnectionError:
                    data = b""
                connection.receive_data(data)
            elif isinstance(event, h11.Response):
                self._note_head(heard, event)
            elif isinstance(event, h11.Data):
                heard.body += bytes(event.data)
                if self.take and heard.body.count(b"\n\n") >= self.take:
                    heard.body = b"\n\n".join(heard.body.split(b"\n\n")[: self.take]) + b"\n\n"
                    break
            elif isinstance(event, h11.EndOfMessage):
                break
        pieces = body_lines(heard.body, heard.headers.get("content-type", ""))
        heard.lines += sorted(pieces, key=_choice_of) if self.by_choice else pieces
        return heard

    def _note_head(self, heard: Heard, response: h11.Response) -> None:
        heard.status = response.status_code
        reason = bytes(response.reason).decode("latin-1")
        heard.lines.append(f"< HTTP/{response.http_version.decode()} {response.status_code} {reason}")
        for name, value in response.headers.raw_items():
            heard.lines.append(f"< {name.decode('latin-1')}: {value.decode('latin-1')}")
            heard.headers[name.decode("latin-1").lower()] = value.decode("latin-1")


def body_lines(body: bytes, content_type: str) -> list[str]:
    """A body in pieces whose join is the body: an event, or a line, each."""
    text = body.decode("utf-8", "surrogateescape")
    end = "\n\n" if content_type.startswith(EVENTS) else "\n"
    pieces = text.split(end)
    return [piece + end for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def _choice_of(event: str) -> int:
    """The index of the first choice in an event; those without one come last."""
    index = event.partition('"choices":[{"index":')[2].partition(",")[0]
    return int(index) if index.isdigit() else MANY
