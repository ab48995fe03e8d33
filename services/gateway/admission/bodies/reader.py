"""Reads bodies of requests within limits of their number, time, rate and bytes.

A body holds no place of the gateway while it arrives, so slow senders do not keep others from being served.
Its bytes are counted from their arrival until its request ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.admission.quota import Quota
from services.gateway.settings import GatewaySettings
from shared.errors import InvalidRequest, RequestTooLarge

Message = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Message]]

LINGER_S = 2.0  # how long a caller that neither sends nor reads is waited for
PATIENCE_S = 5.0  # for how long a body may come slower than `body_min_rate`


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The most bytes that a body may have; a refusal names `setting` and `reason`."""

    num_bytes: int
    setting: str = "RYZ_MAX_BODY_BYTES"
    reason: str = "body_size"

    def refusal(self, size: int) -> RequestTooLarge:
        """The error for a body of `size` bytes or more."""
        return RequestTooLarge(
            f"the body has {size} bytes or more and may have {self.num_bytes} ({self.setting})",
            reason=self.reason,
        )


class BodyReader:
    """Reads the bodies of a gateway.

    Args:
        settings: The limits.
        held: Counts bytes for each party. The caller of `read_body` gives them back when its request ends.
        in_flight: Counts bodies on their way.
    """

    def __init__(self, settings: GatewaySettings, held: Quota, in_flight: Quota) -> None:
        self._limit = BodyLimit(settings.max_body_bytes)
        self._timeout_s = settings.body_timeout_s
        self._min_rate = settings.constants.body_min_rate
        self._held = held
        self._in_flight = in_flight

    @property
    def in_flight(self) -> int:
        """The number of bodies that are arriving."""
        return self._in_flight.taken

    async def read_body(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        party: str,
        *,
        arrived: bool = False,
        limit: BodyLimit | None = None,
    ) -> bytes:
        """Reads a whole body; its length is taken from the party's bytes, or nothing on an error.

        Args:
            receive: See ASGI.
            headers: Headers of the request.
            party: For whom the body counts.
            arrived: The whole body is there already, as is common for a small one: nothing is waited for.
            limit: The limit of its size, if it is not the usual one.

        Raises:
            RequestTooLarge: The announced length, or what has come so far, is over the limit.
            InvalidRequest: It took too long, or came too slowly.
            RateLimited: The party has too many bodies or bytes.
            Overloaded: All parties together have too many.
            ClientDisconnected: The caller left.
        """
        limit = limit or self._limit
        announced = content_length(headers)
        if announced is not None and announced > limit.num_bytes:
            raise limit.refusal(announced)
        if arrived:
            return self._take(await receive(), party, limit)
        self._in_flight.take_units(party)
        parts: list[bytes] = []
        size = 0
        try:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            async with asyncio.timeout(min(self._timeout_s, PATIENCE_S)) as deadline:
                while True:
                    message = await receive()
                    part = self._take(message, party, limit, size)
                    size += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
                    deadline.reschedule(began_s + self._patience_s(size))
        except TimeoutError:
            self._held.free_units(party, size)
            took_s = loop.time() - began_s
            raise InvalidRequest(
                f"the body did not arrive in time: {size} bytes in {took_s:.1f} s; it may take "
                f"{self._timeout_s:g} s, and after {PATIENCE_S:g} s needs {self._min_rate} bytes a second",
                reason="body_timeout",
            ) from None
        except BaseException:
            self._held.free_units(party, size)
            raise
        finally:
            self._in_flight.free_units(party)

    def hold_arrived(self, raw: bytes, party: str) -> None:
        """Takes the bytes of a body that came as a whole by another transport; raises like `read_body`."""
        self._hold(raw, party, self._limit)

    def _take(self, message: Message, party: str, limit: BodyLimit, before: int = 0) -> bytes:
        """Takes the next part of a body of which `before` bytes have come."""
        if message["type"] != "http.request":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        self._hold(part, party, limit, before)
        return part

    def _hold(self, part: bytes, party: str, limit: BodyLimit, before: int = 0) -> None:
        if before + len(part) > limit.num_bytes:
            raise limit.refusal(before + len(part))
        self._held.take_units(party, len(part))

    def _patience_s(self, size: int) -> float:
        """The seconds that a body may take in all if `size` bytes of it have come."""
        if not self._min_rate:
            return self._timeout_s
        return min(self._timeout_s, PATIENCE_S + size / self._min_rate)


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """The announced length of the body; None if it is sent in chunks."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else None


async def discard_body(receive: Receive, limit_s: float = LINGER_S) -> None:
    """Reads the rest of a refused body, for a caller that still sends and would not see the answer.

    Raises:
        TimeoutError: The body has not ended after `limit_s`.
    """
    async with asyncio.timeout(limit_s):
        while (await receive()).get("more_body", False):
            pass
