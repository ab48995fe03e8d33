"""Messages on the bus: calls with one reply, and generations whose frames are read directly."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import convert, decode, encode
from shared.messages import Done, Failed, FrameBatch, GenerateRequest
from tests.contract.corpus.exchange import Address, Heard
from tests.kits.waiting import PATIENCE_S


@dataclass(frozen=True)
class Call:
    """A request with one reply.

    Attributes:
        body: Is sent as JSON unless it is bytes.
        subject: Empty: that of a whole answer of `model`.
        model: The model in the subject.
        headers: Of the message, beside the key.
        key: The API key; None: the key of the table's tenant; empty: no key.
        gateway: The gateway whose broker it is sent to.
    """

    body: Any
    subject: str = ""
    model: str = "demo"
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    gateway: str = "main"

    async def send(self, address: Address, key: str) -> Heard:
        """See `Request`."""
        bearer = key if self.key is None else self.key
        headers = ({"Authorization": f"Bearer {bearer}"} if bearer else {}) | dict(self.headers)
        data = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        subject = self.subject or subjects.complete(self.model)
        bus = await NatsBus.connect(address.nats_url, name="corpus")
        try:
            reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

            async def take(message: Message) -> None:
                if not reply.done():
                    reply.set_result(message)

            inbox = bus.new_inbox()
            await bus.subscribe(inbox, take)
            await bus.flush()
            await bus.publish(subject, data, reply=inbox, headers=headers)
            async with asyncio.timeout(PATIENCE_S):
                answer = await reply
        finally:
            await bus.close()
        lines = [f"> {subject}", *(f"< {name}: {value}" for name, value in answer.headers.items())]
        status = int(answer.headers.get("Ryz-Status", "0"))
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Heard([*lines, answer.data.decode()], status, found, answer.data)


@dataclass(frozen=True)
class Generate:
    """A generation without a gateway: the request is published, and its frames are written down.

    Attributes:
        fields: Of `GenerateRequest`; without an id one is made from the test's counter.
        model: The model in the subject.
        headers: Of the message.
        gateway: The gateway whose broker it is sent to.
    """

    fields: Mapping[str, Any]
    model: str = "demo"
    headers: Mapping[str, str] = field(default_factory=dict)
    gateway: str = "main"

    async def send(self, address: Address, key: str) -> Heard:
        """See `Request`."""
        bus = await NatsBus.connect(address.nats_url, name="corpus")
        heard = Heard([f"> {subjects.generate(self.model)}"])
        ended = asyncio.Event()

        async def take(message: Message) -> None:
            for frame in decode(message.data, FrameBatch).frames:
                heard.lines.append(f"< {msgspec.json.encode(frame).decode()}")
                if isinstance(frame, Done | Failed):
                    ended.set()

        try:
            inbox = bus.new_inbox()
            await bus.subscribe(f"{inbox}.f", take)
            await bus.flush()
            given = {"model": self.model, "reply_to": f"{inbox}.f", "tenant": "direct"} | dict(self.fields)
            request = convert(given, GenerateRequest)
            subject = subjects.generate(self.model)
            await bus.publish(
                subject, encode(request), reply=f"{inbox}.{request.request_id}", headers=dict(self.headers)
            )
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
        finally:
            await bus.close()
        return heard
