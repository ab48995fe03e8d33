"""The session calls of the KV state service, typed."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from shared import subjects
from shared.bus import Bus
from shared.codec import decode_reply, encode
from shared.messages import (
    PinList,
    PinPage,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionDescribe,
    SessionDescribed,
    SessionFound,
    SessionGet,
    SessionList,
    SessionPage,
    SessionPin,
    SessionRecord,
    SessionSummary,
    Wire,
)

M = TypeVar("M", bound=Wire)


class SessionsClient:
    """Reads and writes session records. Every call raises `Unavailable` when the service does not answer."""

    def __init__(self, bus: Bus, *, timeout_s: float = 2.0) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def get(
        self,
        tenant: str,
        session_id: str,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SessionRecord:
        """The record; raises `SessionNotFound` if the tenant has none of that id."""
        message = SessionGet(tenant=tenant, session_id=session_id)
        found = await self._call(subjects.SESSION_GET, message, SessionFound, timeout_s, headers)
        return found.record

    async def commit(
        self, records: Sequence[SessionRecord], *, timeout_s: float | None = None
    ) -> SessionCommitted:
        """Stores records, each for itself; the answer names those that were not stored."""
        message = SessionCommit(records=list(records))
        return await self._call(subjects.SESSION_COMMIT, message, SessionCommitted, timeout_s)

    async def list(
        self, tenant: str, *, limit: int = 100, cursor: str = "", timeout_s: float | None = None
    ) -> SessionPage:
        """A page of summaries, newest first; pass its cursor on for the next one."""
        message = SessionList(tenant=tenant, limit=limit, cursor=cursor)
        return await self._call(subjects.SESSION_LIST, message, SessionPage, timeout_s)

    async def delete(self, tenant: str, session_id: str, *, timeout_s: float | None = None) -> None:
        """Deletes a session; raises `SessionNotFound` if there is none."""
        message = SessionDelete(tenant=tenant, session_id=session_id)
        await self._call(subjects.SESSION_DELETE, message, SessionDeleted, timeout_s)

    async def describe(
        self, tenant: str, session_id: str, *, timeout_s: float | None = None
    ) -> SessionSummary:
        """One session without its text, with its pin and its stored KV; raises `SessionNotFound`."""
        message = SessionDescribe(tenant=tenant, session_id=session_id)
        answer = await self._call(subjects.SESSION_DESCRIBE, message, SessionDescribed, timeout_s)
        return answer.session

    async def pin(
        self, tenant: str, session_id: str, group: str, *, timeout_s: float | None = None
    ) -> SessionSummary:
        """Binds a session to `group`, or frees it if that is empty; raises `SessionNotFound`."""
        message = SessionPin(tenant=tenant, session_id=session_id, group=group)
        answer = await self._call(subjects.SESSION_PIN, message, SessionDescribed, timeout_s)
        return answer.session

    async def pins(self, *, limit: int = 1000, cursor: str = "", timeout_s: float | None = None) -> PinPage:
        """A page of the pins of all tenants; pass its cursor on for the next one."""
        return await self._call(subjects.PINS, PinList(limit=limit, cursor=cursor), PinPage, timeout_s)

    async def _call(
        self,
        subject: str,
        message: Wire,
        kind: type[M],
        timeout_s: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        timeout = self._timeout_s if timeout_s is None else timeout_s
        answer = await self._bus.request(subject, encode(message), timeout_s=timeout, headers=headers)
        return decode_reply(answer.data, kind)
