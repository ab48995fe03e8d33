"""The leader's session store over the bus: the KV state service, asked with a time limit."""

from shared import codec, subjects
from shared.bus.api import Bus
from shared.messages import (
    SessionCommit,
    SessionCommitted,
    SessionFound,
    SessionGet,
    SessionRecord,
)


class BusSessionStore:
    """Implements the `SessionStore` port of `leader/sessions.py`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
        """The stored record; raises `SessionNotFound`, or `Unavailable` when nobody answers in time."""
        query = codec.encode(SessionGet(tenant=tenant, session_id=session_id))
        reply = await self._bus.request(subjects.SESSION_GET, query, timeout_s=timeout_s)
        return codec.decode_reply(reply.data, SessionFound).record

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        """Stores records; says which ones were not. Raises `Unavailable` when nobody answers in time."""
        data = codec.encode(SessionCommit(records=records))
        reply = await self._bus.request(subjects.SESSION_COMMIT, data, timeout_s=timeout_s)
        return codec.decode_reply(reply.data, SessionCommitted)
