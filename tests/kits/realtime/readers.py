"""Reads streams of `/v1/realtime` over as many connections as it takes, and tells what they said."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

# answers that are the same each time
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "n": 2}),
    ("/v1/completions", {"prompt": "Hello", "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
]


class Reader:
    """One stream over as many connections as it takes."""

    def __init__(self, index: int, tokens: int, model: str = "demo") -> None:
        self.name = f"r{index}"
        self.path, body = BODIES[index % len(BODIES)]
        self.body = body | {"model": model, "max_tokens": tokens}
        self.stream_id = ""
        self.events: list[tuple[str, str]] = []
        self.done = False
        self.refusals = 0  # because the fleet was busy; asked for again

    def asks(self) -> str:
        if not self.stream_id:
            return json.dumps({"type": "request", "id": self.name, "path": self.path, "body": self.body})
        last = self.events[-1][0] if self.events else ""
        resume = {"type": "resume", "id": self.name, "stream_id": self.stream_id, "last_event_id": last}
        return json.dumps(resume)

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "accepted":
            self.stream_id = self.stream_id or message["headers"]["x-stream-id"]
        elif message["type"] == "event":
            self.events.append((message["event_id"], json.dumps(message["data"])))
        elif message["type"] == "error" and message["status"] in {429, 503}:
            self.refusals += 1
        else:
            assert message["type"] == "done", message
            self.done = True


async def read(
    url: str, readers: Sequence[Reader], cuts: Sequence[int], *, other: str = "", key: str = ""
) -> None:
    """Reads to the end; the connection is torn after so many messages, for each of `cuts`.

    Args:
        url: Of the gateway.
        readers: The streams.
        cuts: Messages on each connection but the last.
        other: Of another gateway, to which every second connection goes.
        key: The API key.
    """
    headers = {"X-Api-Key": key} if key else {}
    for cut in [*cuts, 1_000_000]:
        async with connect(url, additional_headers=headers) as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            await _read_some(socket, readers, cut)
            socket.transport.abort()  # as a broken network does
        await asyncio.sleep(0.02)
        url, other = other or url, url


async def _read_some(socket: ClientConnection, readers: Sequence[Reader], count: int) -> None:
    by_name = {reader.name: reader for reader in readers}
    for reader in readers:
        if not reader.done:
            await socket.send(reader.asks())
    for _ in range(count):
        if all(reader.done for reader in readers):
            return
        async with asyncio.timeout(60):
            message = json.loads(await socket.recv())
        reader = by_name[message["id"]]
        before = reader.refusals
        reader.take(message)
        if reader.refusals > before:
            await asyncio.sleep(0.3)
            await socket.send(reader.asks())


def said(reader: Reader) -> dict[str, str]:
    """The text and the end of each choice; how both are cut into events depends on the time."""
    texts: dict[str, str] = {}
    for _, text in reader.events:
        data = json.loads(text)
        for choice in data.get("choices", []):
            new = choice["delta"].get("content") if "delta" in choice else choice["text"]
            key = f"choice {choice['index']}"
            texts[key] = texts.get(key, "") + (new or "") + (choice["finish_reason"] or "")
        if data.get("type") == "content_block_delta":
            texts["text"] = texts.get("text", "") + data["delta"]["text"]
        elif "type" in data:
            texts["types"] = texts.get("types", "") + f" {data['type']}"
    return texts
