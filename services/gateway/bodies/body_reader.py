"""Reads bodies: how many may be on their way, for how long, and how many bytes they may take.

A body holds none of the gateway's places while it arrives, so slow senders do not keep others from being
served. Its bytes are counted from their arrival until its request ends.
"""

import asyncio
from collections.abc import Mapping

from starlette.types import Message

from services.gateway.http.limits import BodyLimit, ClientDisconnected, Receive, content_length
from services.gateway.http.quota import Quota
from services.gateway.settings import GatewaySettings
from shared.errors import InvalidRequest

PATIENCE_S = 5.0  # for how long a body may come slower than RYZ_BODY_MIN_RATE


class Bodies:
    """The bodies of a gateway.

    held: counts bytes for each tenant. The caller of `read` gives them back when its request ends.
    """

    def __init__(self, settings: GatewaySettings, held: Quota, share: float) -> None:
        self._limit = BodyLimit(settings.max_body_bytes)
        self._timeout_s = settings.body_timeout_s
        self._min_rate = settings.body_min_rate
        self._held = held
        self._under_way = Quota(
            settings.max_bodies, share=share, what="bodies on their way", reason="gateway_bodies"
        )

    @property
    def under_way(self) -> int:
        """Bodies that are arriving."""
        return self._under_way.taken

    async def read(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        tenant: str,
        party: str,
        *,
        arrived: bool = False,
        limit: BodyLimit | None = None,
    ) -> bytes:
        """The whole body; its length is taken from the tenant's bytes. On an error nothing is.

        arrived: it is all there, as a small one is that came with its headers: nothing is waited for.
        party: whom the body is counted for while it arrives: the tenant, or the address where all are one.
        limit: of this one's size, if that is not the usual one.

        Raises:
            RequestTooLarge: as soon as the announced length or what has come so far is over the limit.
            InvalidRequest: it took too long, or came too slowly.
            RateLimited, Overloaded: too many bodies or bytes, of this tenant or of all.
            ClientDisconnected: the caller left.
        """
        limit = limit or self._limit
        announced = content_length(headers)
        if announced is not None and announced > limit.num_bytes:
            raise limit.refusal(announced)
        if arrived:
            return self._take(await receive(), tenant, limit)
        self._under_way.take(party)
        parts: list[bytes] = []
        size = 0
        try:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            async with asyncio.timeout(min(self._timeout_s, PATIENCE_S)) as deadline:
                while True:
                    message = await receive()
                    part = self._take(message, tenant, limit, size)
                    size += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
                    deadline.reschedule(began_s + self._patience_s(size))
        except TimeoutError:
            self._held.free(tenant, size)
            took_s = loop.time() - began_s
            raise InvalidRequest(
                f"the body did not arrive in time: {size} bytes in {took_s:.1f} s; it may take "
                f"{self._timeout_s:g} s, and after {PATIENCE_S:g} s needs {self._min_rate} bytes a second",
                reason="body_timeout",
            ) from None
        except BaseException:
            self._held.free(tenant, size)
            raise
        finally:
            self._under_way.free(party)

    def _take(self, message: Message, tenant: str, limit: BodyLimit, before: int = 0) -> bytes:
        """The next part of a body of which `before` bytes have come."""
        if message["type"] != "http.request":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        if before + len(part) > limit.num_bytes:
            raise limit.refusal(before + len(part))
        self._held.take(tenant, len(part))
        return part

    def _patience_s(self, size: int) -> float:
        """How long after its beginning a body of which so much has come may go on."""
        if not self._min_rate:
            return self._timeout_s
        return min(self._timeout_s, PATIENCE_S + size / self._min_rate)
