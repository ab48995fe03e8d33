"""Frames of WebSockets as bytes, right and wrong ones, and a client that sends them as they are."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import strategies as st

from tests.kits.waiting import PATIENCE_S

HANDSHAKE = (
    "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
TEXT, CLOSE, PING = 1, 8, 9
# what RFC 6455, 7.4.1, has for faults of the client, and the end that it asked for itself
CLOSES = frozenset({1000, 1002, 1003, 1007, 1008, 1009})


def frame(
    payload: bytes, opcode: int = TEXT, *, fin: bool = True, rsv: int = 0, masked: bool = True, extra: int = 0
) -> bytes:
    """One frame, whose length may be told as more than it is (`extra`)."""
    length = len(payload) + extra
    head = bytearray([(fin << 7) | (rsv << 4) | opcode])
    if length < 126:
        head += bytes([(masked << 7) | length])
    elif length < 65536:
        head += bytes([(masked << 7) | 126]) + length.to_bytes(2)
    else:
        head += bytes([(masked << 7) | 127]) + length.to_bytes(8)
    if not masked:
        return bytes(head) + payload
    mask = os.urandom(4)
    return bytes(head) + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def told(kind: str, **fields: Any) -> bytes:
    """A message of the client in one frame."""
    return frame(json.dumps({"type": kind} | fields).encode())


_BODIES = st.fixed_dictionaries(
    {"model": st.sampled_from(["demo", "none"]), "messages": st.just([{"role": "user", "content": "Hello"}])},
    optional={"stream": st.booleans(), "max_tokens": st.integers(-1, 20), "n": st.integers(0, 3)},
)
_IDS = st.sampled_from(["a", "b"])
_MESSAGES = st.one_of(
    st.builds(lambda name, body: {"type": "request", "id": name, "body": body}, _IDS, _BODIES),
    st.builds(lambda name: {"type": "cancel", "id": name}, _IDS),
    st.builds(lambda name: {"type": "resume", "id": name, "stream_id": "r-none"}, _IDS),
    st.just({"type": "ping"}),
    st.just({"type": "session", "session_id": "my-cat"}),
).map(lambda message: json.dumps(message).encode())
_PAYLOADS = st.one_of(_MESSAGES, st.binary(max_size=130), st.just(b'{"type":"ping"}'))


def _split(payload: bytes, at: int) -> bytes:
    """A message in three frames with a ping between them."""
    at = min(at, len(payload))
    parts = frame(payload[:at], fin=False), frame(b"p", PING), frame(b"", 0, fin=False)
    return b"".join(parts) + frame(payload[at:], 0)


right_frames = st.one_of(
    _MESSAGES.map(frame),
    st.builds(_split, _MESSAGES, st.integers(0, 60)),
    st.binary(max_size=125).map(lambda data: frame(data, PING)),
    st.binary(max_size=125).map(lambda data: frame(data, 10)),
)
any_frames = st.one_of(
    right_frames,
    st.builds(
        frame,
        _PAYLOADS,
        st.integers(0, 15),
        fin=st.booleans(),
        rsv=st.integers(0, 7),
        masked=st.booleans(),
        extra=st.sampled_from([0, 0, 0, 1, 2**31]),
    ),
    st.binary(max_size=40),
)


class FrameClient:
    """One connection that is a WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.messages: list[dict[str, Any]] = []
        self.close_code = 0  # 0: none has come

    async def read_until(self, kind: str) -> bool:
        """Reads messages to the first of a kind; False if the connection ends before it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self._read_frame():
                    if self.messages and self.messages[-1]["type"] == kind:
                        return True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return False

    async def _read_frame(self) -> bool:
        first, length = await self.reader.readexactly(2)
        if length >= 126:
            length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8))
        payload = await self.reader.readexactly(length)
        if first & 15 == TEXT:
            self.messages.append(json.loads(payload))
        elif first & 15 == CLOSE:
            self.close_code = int.from_bytes(payload[:2]) if payload else 1005
            return False
        return True


@asynccontextmanager
async def frame_client(port: int, *, known: bool = True) -> AsyncIterator[FrameClient]:
    """Opens a connection; it is torn at the end of the block.

    Args:
        port: Of the gateway.
        known: It needs no key, so that it is ready at once.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        writer.write(HANDSHAKE.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        client = FrameClient(reader, writer)
        assert not known or await client.read_until("ready")
        yield client
    finally:
        writer.transport.abort()


async def check_frames(port: int, sent: bytes, *, right: bool) -> None:
    """Sends frames at once: the connection lives on, or is closed for a fault that the client made.

    Args:
        port: Of the gateway.
        sent: The frames.
        right: They follow the protocol, so that the connection has to live on.
    """
    async with frame_client(port) as client:
        client.writer.write(sent)
        if right:
            client.writer.write(told("auth", api_key="-"))  # is refused when all before it was taken
        else:
            client.writer.write_eof()  # a frame that has not come whole is not waited for
        alive = await client.read_until("error")
        while alive and "key already" not in json.dumps(client.messages[-1]):
            alive = await client.read_until("error")
        errors = [message for message in client.messages if message["type"] == "error"]
        assert all(message["status"] < 500 for message in errors), errors
        assert alive == right, (client.close_code, client.messages)
        assert client.close_code in CLOSES | {0, 1005}, client.close_code
