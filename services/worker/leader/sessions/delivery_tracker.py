"""Which turns' answers have not reached their callers, as far as gateways say: a turn that comes again then
takes the place of the one whose answer was lost.

Only gateways confirm, and they say so in the request; the turns of all other callers count as delivered. What
is not known any more (the leader was another one, too many sessions since) counts as delivered, too: a turn
that is there twice does less harm than one that is lost.
"""

import asyncio

from services.worker.domain.generation.tenant_entries import TenantEntries
from shared.bus.api import Message
from shared.messages import Delivered, GenerateRequest

MAX_SESSIONS = 10_000  # of all tenants; beyond it those of the one that has most count as delivered
CONFIRM_S = 0.25  # how long the word of a gateway may take that has the end of an answer


class DeliveryTracker:
    """The last turn of each session whose answer is on its way. `on_delivered` handles the gateways' word."""

    def __init__(self, confirm_s: float = CONFIRM_S) -> None:
        self._confirm_s = confirm_s
        self._open = TenantEntries[tuple[str, asyncio.Event]](MAX_SESSIONS)

    def expect(self, request: GenerateRequest) -> None:
        """The turn has ended, and its answer is sent."""
        if request.session is None:
            return
        place = request.tenant, request.session.session_id
        if request.confirms:
            self._open.put(*place, (request.request_id, asyncio.Event()))
        else:
            self._open.pop(*place)

    async def was_lost(self, tenant: str, session_id: str, request_id: str) -> bool:
        """Whether the answer of a session's last turn has not reached its caller; gives it a moment."""
        found = self._open.get(tenant, session_id)
        if found is None or found[0] != request_id:
            return False
        try:
            async with asyncio.timeout(self._confirm_s):
                await found[1].wait()
        except TimeoutError:
            return True
        return False

    async def on_delivered(self, told: Delivered, _: Message) -> None:
        """A gateway is about to send the last of an answer to a caller that is still there."""
        place = told.tenant, told.session_id
        found = self._open.get(*place)
        if found is not None and found[0] == told.request_id:
            found[1].set()
            self._open.pop(*place)
