"""The requests of one connection that wait for their replies, all on one inbox."""

import asyncio
from itertools import count

from shared.bus.api import Message, NoResponders, RequestTimedOut
from shared.errors import Unavailable


class PendingReplies:
    """Gives each request a reply subject below `inbox`, and wakes it with the first message there."""

    def __init__(self, inbox: str) -> None:
        self.pattern = f"{inbox}.*"
        self._prefix = f"{inbox}."
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    def expect(self) -> tuple[str, "asyncio.Future[Message]"]:
        """Returns a new reply subject, and the future of the message that arrives there."""
        reply = f"{self._prefix}{next(self._numbers)}"
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        return reply, future

    def arrived(self, message: Message) -> None:
        """Wakes the request that the message answers; a reply that no request waits for is ignored."""
        future = self._waiting.pop(message.subject, None)
        if future is not None and not future.done():
            future.set_result(message)

    async def wait(
        self, reply: str, future: "asyncio.Future[Message]", subject: str, timeout_s: float
    ) -> Message:
        """Returns the reply; raises `NoResponders` or `RequestTimedOut`."""
        expiry = asyncio.get_running_loop().call_later(timeout_s, self._expire, future)
        try:
            message = await future
        finally:
            expiry.cancel()
            self.forget(reply)
        if message is _NOTHING:
            raise RequestTimedOut(f"no answer on {subject} within {timeout_s:g} s", reason="timeout")
        if message.no_responders:
            raise NoResponders(f"no service listens on {subject}", reason="no_responders")
        return message

    def forget(self, reply: str) -> None:
        """Forgets a reply subject."""
        self._waiting.pop(reply, None)

    def fail_all(self, error: Unavailable) -> None:
        """Ends every waiting request with this error."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    @staticmethod
    def _expire(future: "asyncio.Future[Message]") -> None:
        if not future.done():
            future.set_result(_NOTHING)


_NOTHING = Message(subject="", data=b"")
