"""Begins the erasure of a tenant's usage, and says how far it is; the replica that adds usage up does it."""

import time
from typing import NamedTuple

from msgspec.structs import replace

from services.kvstate.usage.erased import UsageErasure
from services.kvstate.usage.streams import UsageStreams
from shared.bus.jetstream.errors import NoJetStream, NoStream, WrongLastMessage
from shared.errors import InvalidRequest, Unavailable
from shared.messages.tenants.accounts import ERASED_TENANTS

MAX_TRIES = 20


class ErasedUsage(NamedTuple):
    """What has lost its name, said once; zeros while something is left."""

    sums: int = 0
    records: int = 0
    left: bool = False


class TenantUsage:
    """Erases names from usage.

    Args:
        streams: With the marks of erasures.
    """

    def __init__(self, streams: UsageStreams) -> None:
        self._streams = streams

    async def begin_erasure(self, tenant: str) -> None:
        """Marks what there is of a tenant as usage without a name; goes on with an erasure that is under way.

        Raises:
            InvalidRequest: It is the name of what was erased.
        """
        if tenant == ERASED_TENANTS:
            raise InvalidRequest(
                f"{ERASED_TENANTS!r} is the name for the usage of erased tenants, and has no data",
                param="tenant",
            )
        for _ in range(MAX_TRIES):
            try:
                before, seq = await self._streams.erasure(tenant)
                if before is not None and not before.until_ms:
                    return
                began = UsageErasure(tenant=tenant, began_ms=time.time_ns() // 1_000_000)
                if before is not None:
                    began = replace(began, moved_to=before.moved_to)  # these may come back, and count no more
                if before is not None and not before.told:
                    began = replace(began, sums=before.sums, records=before.records)
                await self._streams.put_erasure(began, seq)
                return
            except (NoJetStream, NoStream):
                return  # such a broker counts no usage
            except WrongLastMessage:
                continue  # the one that was there has just gone on
        raise Unavailable(f"the usage of tenant {tenant!r} is being erased: try again", reason="busy")

    async def progress(self, tenant: str) -> ErasedUsage:
        """What the erasure has done; counts are said once, when nothing is left."""
        try:
            erasure, seq = await self._streams.erasure(tenant)
        except NoJetStream:
            return ErasedUsage()
        if erasure is None:
            return ErasedUsage()
        if not erasure.clean:
            return ErasedUsage(left=True)
        if erasure.told:
            return ErasedUsage()
        try:
            await self._streams.put_erasure(replace(erasure, told=True), seq)
        except WrongLastMessage:
            return ErasedUsage(left=True)  # it goes on, with a record that came late
        return ErasedUsage(erasure.sums, erasure.records)
