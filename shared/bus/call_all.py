"""A request to all that listen on a subject. `endpoint.call` takes the first answer."""

import asyncio
from contextlib import suppress
from typing import TypeVar

from shared.bus.api import Bus, Message, NoResponders
from shared.codec import decode_reply, encode
from shared.errors import RyzError
from shared.messages import Wire

M = TypeVar("M", bound=Wire)


async def call_all(
    bus: Bus, subject: str, request: Wire, kind: type[M], *, expected: int, timeout_s: float, more_s: float
) -> list[M | RyzError]:
    """Sends a request and returns the replies of type `kind`, and the errors of `ErrorReply`s, as they came.

    Args:
        expected: So many replies are waited for.
        timeout_s: How long to wait for the first of them.
        more_s: How long to wait for the others after the first.

    Raises:
        NoResponders: Nothing listens on the subject.
        Unavailable: There is no connection to the broker.
    """
    replies, arrived = list[M | RyzError](), asyncio.Queue[Message]()
    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, arrived.put)
    try:
        await bus.publish(subject, encode(request), reply=inbox)
        wait_s = timeout_s
        with suppress(TimeoutError):
            while len(replies) < expected:
                async with asyncio.timeout(wait_s):
                    message = await arrived.get()
                if message.no_responders:
                    raise NoResponders(f"no service listens on {subject}", reason="no_responders")
                try:
                    replies.append(decode_reply(message.data, kind))
                except RyzError as error:
                    replies.append(error)
                if len(replies) == 1:
                    until = asyncio.get_running_loop().time() + more_s
                wait_s = until - asyncio.get_running_loop().time()
        return replies
    finally:
        await subscription.unsubscribe()
