"""WebSockets: messages in both directions, the head of the answer, and how the connection ends."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.contract.corpus.exchange import Address, Heard
from tests.kits.waiting import PATIENCE_S


@dataclass(frozen=True)
class Until:
    """Messages are read up to one of these types.

    Attributes:
        kinds: Values of the message's `type`.
        count: So many such messages.
    """

    kinds: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Closed:
    """Messages are read until the gateway closes the connection."""


# a text or bytes are sent as they are, others as JSON
Act = Until | Closed | str | bytes | dict[str, Any]


@dataclass(frozen=True)
class Socket:
    """A connection.

    Attributes:
        acts: What the client does, in its order.
        path: Of the upgrade.
        headers: More headers of the upgrade.
        subprotocols: That the client offers.
        key: The API key; None: the key of the table's tenant; empty: no key.
        gateway: `main` or `tight`.
    """

    acts: Sequence[Act]
    path: str = "/v1/realtime"
    headers: Mapping[str, str] = field(default_factory=dict)
    subprotocols: Sequence[str] = ()
    key: str | None = None
    gateway: str = "main"

    async def send(self, address: Address, key: str) -> Heard:
        """See `Request`."""
        bearer = key if self.key is None else self.key
        headers = ({"Authorization": f"Bearer {bearer}"} if bearer else {}) | dict(self.headers)
        heard = Heard([f"> GET {self.path} (upgrade)"])
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                connect(
                    f"ws://127.0.0.1:{address.http_port}{self.path}",
                    additional_headers=headers,
                    subprotocols=list(self.subprotocols) or None,  # type: ignore[arg-type]  # a NewType of str
                    compression=None,
                    user_agent_header=None,
                    max_size=2**24,
                    ping_interval=None,
                ) as socket,
            ):
                self._note_head(heard, socket.response)
                await self._act(socket, heard)
        except InvalidStatus as refused:
            self._note_head(heard, refused.response)
            heard.lines += [refused.response.body.decode()] if refused.response.body else []
        return heard

    async def _act(self, socket: ClientConnection, heard: Heard) -> None:
        try:
            for act in self.acts:
                if isinstance(act, Closed):
                    while True:
                        await self._receive(socket, heard)
                elif isinstance(act, Until):
                    left = act.count
                    while left:
                        message = await self._receive(socket, heard)
                        left -= message.get("type") in act.kinds
                else:
                    raw = json.dumps(act) if isinstance(act, dict) else act
                    heard.lines.append(f"> {raw!r}" if isinstance(raw, bytes) else f"> {raw[:400]}")
                    await socket.send(raw)
        except ConnectionClosed as closed:
            frame = closed.rcvd
            heard.lines.append("< cut" if frame is None else f"< close {int(frame.code)} {frame.reason}")

    @staticmethod
    async def _receive(socket: ClientConnection, heard: Heard) -> dict[str, Any]:
        raw = await socket.recv()
        text = raw if isinstance(raw, str) else raw.decode()
        heard.lines.append(f"< {text}")
        heard.body += text.encode() + b"\n"
        message: dict[str, Any] = json.loads(text)
        return message

    @staticmethod
    def _note_head(heard: Heard, response: Any) -> None:
        heard.status = response.status_code
        heard.lines.append(f"< HTTP/1.1 {response.status_code} {response.reason_phrase}")
        for name, value in response.headers.raw_items():
            heard.lines.append(f"< {name}: {value}")
            heard.headers[name.lower()] = value
