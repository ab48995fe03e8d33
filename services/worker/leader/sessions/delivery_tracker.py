"""Tracks turns whose answers have not reached their callers, as far as gateways confirm it.

A turn that comes again replaces one whose answer was lost. Only gateways confirm deliveries, and
announce it in the request; the turns of all other callers count as delivered. Turns that are not known any
more (of another leader, or too many sessions since) count as delivered, too: a turn that is recorded twice
does less harm than one that is lost.
"""

import asyncio

from services.worker.domain.generation.tenant_entries import TenantEntries
from shared.bus.api import Message
from shared.messages import Delivered, GenerateRequest

MAX_SESSIONS = 10_000  # of all tenants; beyond it those of the one that has most count as delivered
CONFIRM_S = 0.25  # for a gateway that has the end of an answer to confirm it


class DeliveryTracker:
    """The last turn of each session whose answer is on its way."""

    def __init__(self, confirm_s: float = CONFIRM_S) -> None:
        self._confirm_s = confirm_s
        self._open = TenantEntries[tuple[str, asyncio.Event]](MAX_SESSIONS)

    @property
    def confirm_s(self) -> float:
        """Seconds that a gateway has for a confirmation."""
        return self._confirm_s

    def undelivered(self, tenant: str, session_id: str) -> str:
        """Returns the request of the session's last turn here if its delivery is not confirmed yet."""
        found = self._open.get(tenant, session_id)
        return found[0] if found is not None else ""

    def expect_delivery(self, request: GenerateRequest) -> None:
        """Expects a confirmation of a turn that has ended, if its gateway confirms."""
        if request.session is None:
            return
        key = request.tenant, request.session.session_id
        if request.confirms:
            self._open.put(*key, (request.request_id, asyncio.Event()))
        else:
            self._open.pop(*key)

    async def was_lost(self, tenant: str, session_id: str, request_id: str) -> bool:
        """Returns whether the answer of a session's last turn was lost; waits `confirm_s` for its gateway."""
        found = self._open.get(tenant, session_id)
        if found is None or found[0] != request_id:
            return False
        try:
            async with asyncio.timeout(self._confirm_s):
                await found[1].wait()
        except TimeoutError:
            return True
        return False

    async def confirm_delivery(self, delivered: Delivered, _: Message) -> None:
        """Takes a confirmation: a gateway sends the end of an answer to a caller that is connected."""
        key = delivered.tenant, delivered.session_id
        found = self._open.get(*key)
        if found is not None and found[0] == delivered.request_id:
            found[1].set()
            self._open.pop(*key)
