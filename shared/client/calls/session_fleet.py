"""Asks routers where a session's turns would go, and leaders what of its KV they have in memory."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from shared import subjects
from shared.bus import Bus, Message, NoResponders, RequestTimedOut
from shared.bus.endpoint import call
from shared.codec import decode, encode
from shared.errors import RateLimited, Unavailable
from shared.flow.tenant_slots import TenantSlots, TooManyWait
from shared.messages import HoldersQuery, Holding, SessionRoute, SessionRouteQuery, Warmed, WarmSession

RETRY_S = 1.0
# Views and moves of one client at the same time: a view sends a whole sequence to all leaders, a move has one
# fetched. As in the KV state service, one slot is left over when a tenant has all that it may have.
AT_ONCE, PER_TENANT = 4, 2
MAX_WAITING = 128  # of a tenant


@contextmanager
def asking(service: str, reason: str) -> Iterator[None]:
    """Make an `Unavailable` inside the block name the service that did not answer, and when to try again."""
    try:
        yield
    except (NoResponders, RequestTimedOut) as error:
        raise Unavailable(
            f"{service} does not answer; try again in a moment", reason=reason, retry_after_s=RETRY_S
        ) from error
    except Unavailable as error:
        if error.retry_after_s is not None:
            raise
        raise Unavailable(error.message, **{**error.data, "retry_after_s": RETRY_S}) from error


class SessionFleet:
    """Calls to routers and leaders; they raise `Unavailable` with a reason if there is no answer.

    Args:
        bus: The connection.
        timeout_s: How long one answer may take.
        gather_s: How long all leaders may take to say what they hold.
        wait_s: How long a router is waited for while none runs.
    """

    def __init__(
        self, bus: Bus, *, timeout_s: float = 2.0, gather_s: float = 0.1, wait_s: float = 0.0
    ) -> None:
        self._bus = bus
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._gather_s = gather_s
        self._slots = TenantSlots(AT_ONCE, per_tenant=PER_TENANT, max_waiting=MAX_WAITING)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """One of a few slots for calls that cost all leaders or the store much, given to tenants in rotation.

        Raises `RateLimited` when as many of the tenant wait as may.
        """
        try:
            await self._slots.enter(tenant)
        except TooManyWait:
            raise RateLimited(
                f"the tenant has {MAX_WAITING} calls about sessions waiting; make fewer at the same time",
                reason="session_calls",
                retry_after_s=RETRY_S,
            ) from None
        try:
            yield
        finally:
            self._slots.leave(tenant)

    async def route(self, tenant: str, session_id: str, model: str) -> SessionRoute:
        """Where a session of that model would go, and the model's groups with their states."""
        message = SessionRouteQuery(tenant=tenant, session_id=session_id, model=model)
        with asking("the router", "no_router"):
            subject, timeout_s = subjects.SESSION_ROUTE, self._timeout_s
            return await call(
                self._bus, subject, message, SessionRoute, timeout_s=timeout_s, wait_s=self._wait_s
            )

    async def holders(
        self, tenant: str, token_ids: bytes, *, adapter: str = "", expected: Collection[str] = ()
    ) -> list[Holding]:
        """The KV of a sequence that leaders have in memory, in the order of their groups.

        Call it in a `slot`, because the token ids go to each leader.

        Args:
            tenant: Whose sequence it is.
            token_ids: Packed.
            adapter: Fingerprint of the adapter that computed it; empty: the base alone.
            expected: When these groups have answered, no others are waited for; empty: waits for `gather_s`.
        """
        held: dict[str, Holding] = {}
        complete = asyncio.Event()

        async def collect(message: Message) -> None:
            if not message.no_responders:
                holding = decode(message.data, Holding)
                held[holding.group] = holding
            if message.no_responders or (expected and held.keys() >= set(expected)):
                complete.set()

        inbox = self._bus.new_inbox()
        subscription = await self._bus.subscribe(inbox, collect)
        try:
            query = HoldersQuery(tenant=tenant, token_ids=token_ids, adapter=adapter)
            await self._bus.publish(subjects.KV_HOLDERS, encode(query), reply=inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await complete.wait()
        finally:
            await subscription.unsubscribe()
        return [held[group] for group in sorted(held)]

    async def warm(self, tenant: str, session_id: str, group: str) -> Warmed:
        """Has a group fetch what the store has of the session, and be where its next turn goes.

        Call it in a `slot`.
        """
        message = WarmSession(tenant=tenant, session_id=session_id)
        with asking(f"group {group!r}", "group_away"):
            return await call(self._bus, subjects.warm(group), message, Warmed, timeout_s=self._timeout_s)
