"""Session records that other leaders know: asked for when the store cannot tell."""

from shared import subjects
from shared.bus.api import Bus
from shared.codec import decode_reply, encode
from shared.messages import SessionFound, SessionGet, SessionRecord


class PeerSessions:
    """Asks one group's leader. Raises `SessionNotFound`, or `Unavailable` when it is not there or silent."""

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def __call__(self, group: str, tenant: str, session_id: str) -> SessionRecord:
        """The record as that leader knows it."""
        asked = encode(SessionGet(tenant=tenant, session_id=session_id))
        answer = await self._bus.request(subjects.peer(group), asked, timeout_s=self._timeout_s)
        return decode_reply(answer.data, SessionFound).record
