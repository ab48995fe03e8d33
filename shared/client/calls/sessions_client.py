"""The session calls of the KV state service, typed."""

from collections.abc import Sequence
from typing import TypeVar

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
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
    """Reads and writes session records.

    Every call raises `Unavailable` if the service does not answer. Calls that no turn waits for are served by
    turns of tenants, and raise `RateLimited` if the tenant has too many of them waiting: `list`, `delete`,
    `describe` and `pin` always, `get` and `commit` unless the client is `for_turns`.
    """

    def __init__(
        self, bus: Bus, *, timeout_s: float = 2.0, for_turns: bool = True, wait_s: float = 0.0
    ) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._for_turns = for_turns
        self._wait_s = wait_s  # for a service that is away

    async def get(
        self,
        tenant: str,
        session_id: str,
        *,
        timeout_s: float | None = None,
    ) -> SessionRecord:
        """The record; raises `SessionNotFound` if the tenant has none of that id."""
        message, turns_of = SessionGet(tenant=tenant, session_id=session_id), self._turns_of(tenant)
        found = await self._call(subjects.SESSION_GET, message, SessionFound, timeout_s, turns_of)
        return found.record

    async def commit(
        self, records: Sequence[SessionRecord], *, timeout_s: float | None = None
    ) -> SessionCommitted:
        """Stores records, each for itself; the answer names those that were not stored."""
        message, turns_of = SessionCommit(records=list(records)), self._turns_of(records[0].tenant)
        return await self._call(subjects.SESSION_COMMIT, message, SessionCommitted, timeout_s, turns_of)

    async def list(
        self,
        tenant: str,
        *,
        limit: int = 100,
        cursor: str = "",
        spare: bool = True,
        timeout_s: float | None = None,
    ) -> SessionPage:
        """A page of summaries, newest first; pass its cursor on for the next one; see `SessionList`."""
        message = SessionList(tenant=tenant, limit=limit, cursor=cursor, spare=spare)
        return await self._call(subjects.SESSION_LIST, message, SessionPage, timeout_s, tenant)

    async def delete(
        self, tenant: str, session_id: str, *, timeout_s: float | None = None, undo: bool = False
    ) -> None:
        """Deletes a session; raises `SessionNotFound` if there is none.

        With `undo`, for a session that was created a moment ago, the call counts for no tenant, so that it is
        not refused because the tenant has too many calls.
        """
        message, turns_of = SessionDelete(tenant=tenant, session_id=session_id), "" if undo else tenant
        await self._call(subjects.SESSION_DELETE, message, SessionDeleted, timeout_s, turns_of)

    async def describe(
        self, tenant: str, session_id: str, *, timeout_s: float | None = None
    ) -> SessionSummary:
        """One session without its text, with its pin and its stored KV; raises `SessionNotFound`."""
        message = SessionDescribe(tenant=tenant, session_id=session_id)
        answer = await self._call(subjects.SESSION_DESCRIBE, message, SessionDescribed, timeout_s, tenant)
        return answer.session

    async def pin(
        self, tenant: str, session_id: str, group: str, *, timeout_s: float | None = None
    ) -> SessionSummary:
        """Binds a session to `group`, or frees it if that is empty; raises `SessionNotFound`."""
        message = SessionPin(tenant=tenant, session_id=session_id, group=group)
        answer = await self._call(subjects.SESSION_PIN, message, SessionDescribed, timeout_s, tenant)
        return answer.session

    async def pins(self, *, limit: int = 1000, cursor: str = "", timeout_s: float | None = None) -> PinPage:
        """A page of the pins of all tenants; pass its cursor on for the next one."""
        return await self._call(subjects.PINS, PinList(limit=limit, cursor=cursor), PinPage, timeout_s)

    def _turns_of(self, tenant: str) -> str:
        return "" if self._for_turns else tenant

    async def _call(
        self, subject: str, message: Wire, kind: type[M], timeout_s: float | None, turns_of: str = ""
    ) -> M:
        """Sends one call and reads its answer; `turns_of`: the tenant in whose turn it is served, if any."""
        timeout = self._timeout_s if timeout_s is None else timeout_s
        headers = {subjects.HEADER_TENANT: turns_of} if turns_of else None
        wait_s = min(self._wait_s, timeout)
        return await call(
            self._bus, subject, message, kind, timeout_s=timeout, headers=headers, wait_s=wait_s
        )
