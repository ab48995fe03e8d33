"""Session records that other leaders know: asked for when the store cannot tell."""

from shared import subjects
from shared.bus.api import Bus
from shared.codec import decode_reply, encode
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
        asked = encode(SessionGet(tenant=tenant, session_id=session_id))
        answer = await self._bus.request(subjects.peer(group), asked, timeout_s=self._timeout_s)
        return decode_reply(answer.data, SessionFound).record
