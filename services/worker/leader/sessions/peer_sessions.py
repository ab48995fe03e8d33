"""Session records that other leaders know: asked for when the store cannot tell."""

from shared import subjects
from shared.bus.api import Bus
from shared.bus.endpoint import call
from shared.messages import SessionFound, SessionGet, SessionRecord

_PATIENCE = 3  # times the store's limit: nobody else can be asked, and one that is gone shows at once


class PeerSessionClient:
    """Asks one group's leader. Raises `SessionNotFound`, or `Unavailable` when it is not there or silent.

    timeout_s: how long the store may take for the same.
    """

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = _PATIENCE * timeout_s

    async def __call__(self, group: str, tenant: str, session_id: str) -> SessionRecord:
        """The record as that leader knows it."""
        query, timeout_s = SessionGet(tenant=tenant, session_id=session_id), self._timeout_s
        return (await call(self._bus, subjects.peer(group), query, SessionFound, timeout_s=timeout_s)).record
