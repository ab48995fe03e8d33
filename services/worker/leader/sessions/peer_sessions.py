"""Asks other leaders for session records."""

from shared import subjects
from shared.bus.api import Bus
from shared.bus.endpoint import call
from shared.messages import SessionFound, SessionGet, SessionRecord

_PATIENCE = 3  # times the store's limit; a leader that is gone is noticed at once


class PeerSessionClient:
    """Asks the leader of one group.

    Args:
        timeout_s: Limit of the store for the same question.
    """

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = _PATIENCE * timeout_s

    async def __call__(self, group: str, tenant: str, session_id: str) -> SessionRecord:
        """Returns the record as that leader knows it.

        Raises:
            SessionNotFound: The leader does not know the session.
            Unavailable: It is gone, or does not answer.
        """
        query, timeout_s = SessionGet(tenant=tenant, session_id=session_id), self._timeout_s
        return (await call(self._bus, subjects.peer(group), query, SessionFound, timeout_s=timeout_s)).record
