"""Sessions as objects: viewed, created, pinned and moved, for gateways and for other services.

Joins what three kinds of services know of a session: its record and stored KV (the KV state service), the
group of its next turn (a router), and the groups with its KV in memory (the leaders). A refused call changes
nothing.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import msgspec

from shared.bus import Bus
from shared.client.calls.session_fleet import SessionFleet, asking
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import Conflict, InvalidRequest, RateLimited, RequestTooLarge, RyzError, SessionNotFound
from shared.messages import (
    Holding,
    SessionPage,
    SessionRecord,
    SessionRoute,
    SessionSummary,
    Warmed,
)
from shared.messages.sessions import MAX_SESSION_MESSAGES


@dataclass(frozen=True, slots=True)
class SessionView:
    """All that is known of a session at one moment.

    Attributes:
        summary: Without text, with pin and stored KV.
        record: Text and tokens.
        route: Where it would go; None: no router answered.
        holdings: The groups with any of its KV in memory, by name.
    """

    summary: SessionSummary
    record: SessionRecord
    route: SessionRoute | None
    holdings: list[Holding]


class SessionAdmin:
    """The calls about sessions.

    Every call raises `Unavailable` with a reason if a service that it needs does not answer, `RateLimited` if
    the tenant has too many of them under way, and `SessionNotFound` if the tenant has no such session.

    Args:
        bus: The connection.
        timeout_s: How long each service may take.
        gather_s: How long leaders may take to say what they hold.
        wait_s: How long a service that is away is waited for.

    Attributes:
        fleet: Asks routers and leaders alone.
    """

    def __init__(self, bus: Bus, *, timeout_s: float, gather_s: float, wait_s: float = 0.0) -> None:
        wait_s = min(wait_s, timeout_s)
        self._records = SessionsClient(bus, timeout_s=timeout_s, for_turns=False, wait_s=wait_s)
        self.fleet = SessionFleet(bus, timeout_s=timeout_s, gather_s=gather_s, wait_s=wait_s)

    async def page(
        self, tenant: str, *, limit: int = 100, cursor: str = "", spare: bool = True
    ) -> SessionPage:
        """A page of summaries, newest first; an empty cursor marks the last one.

        Without `spare`, sessions are left out whose id was made for one request and that had no second turn.
        """
        with _kvstate():
            return await self._records.list(tenant, limit=limit, cursor=cursor, spare=spare)

    async def record(self, tenant: str, session_id: str) -> SessionRecord:
        """The session's text and tokens."""
        with _kvstate():
            return await self._records.get(tenant, session_id)

    async def summary(self, tenant: str, session_id: str) -> SessionSummary:
        """The session without its text, with its pin and its stored KV."""
        with _kvstate():
            return await self._records.describe(tenant, session_id)

    async def view(self, tenant: str, session_id: str) -> SessionView:
        """The session with all that is known of it; routers and leaders that do not answer are left out."""
        summary = await self.summary(tenant, session_id)
        async with self.fleet.slot(tenant):  # taken before the record is loaded: waiting calls hold none
            record = await self.record(tenant, session_id)
            route, ready = None, set[str]()
            with suppress(RyzError):
                route = await self.fleet.route(tenant, session_id, summary.model)
                ready = {name for name, state in route.groups.items() if state == "ready"}
            holdings = []
            with suppress(RyzError):
                holdings = await self.fleet.holders(
                    tenant, record.token_ids, adapter=record.adapter, expected=ready
                )
        return SessionView(summary, record, route, [one for one in holdings if one.cached_tokens])

    async def create(self, record: SessionRecord, *, pinned_group: str = "") -> SessionSummary:
        """Stores a session that is not there yet; its record has version 1.

        Raises:
            Conflict: there is one of that id.
            InvalidRequest: there is no such group to pin it to.
            RateLimited: the tenant may store no more.
            RequestTooLarge: the record is over the store's limit.
        """
        tenant, session_id = record.tenant, record.session_id
        if pinned_group:
            await self._check_group(tenant, session_id, record.model, pinned_group)
        if not await self._store(record):
            raise await self._taken(tenant, session_id)
        try:
            if pinned_group:
                with _kvstate():
                    return await self._records.pin(tenant, session_id, pinned_group)
            return await self.summary(tenant, session_id)
        except BaseException:
            with suppress(RyzError):  # without an answer it may have been stored
                await self._records.delete(tenant, session_id, undo=True)
            raise

    async def replace(self, record: SessionRecord) -> SessionSummary:
        """Stores a session in place of what is there under its id, if anything; its version is set here.

        Raises:
            Conflict: the session had a turn meanwhile.
            RateLimited: the tenant may store no more.
            RequestTooLarge: the record is over the store's limit.
        """
        version = 1
        with suppress(SessionNotFound):
            version += (await self.summary(record.tenant, record.session_id)).version
        if not await self._store(msgspec.structs.replace(record, version=version)):
            raise Conflict(
                f"session {record.session_id!r} changed while it was to be replaced and was left as it is; "
                "try again",
                session_id=record.session_id,
            )
        return await self.summary(record.tenant, record.session_id)

    async def pin(self, tenant: str, session_id: str, group: str) -> SessionSummary:
        """Binds all turns of a session to a group; raises `InvalidRequest` if its model has no such group."""
        summary = await self.summary(tenant, session_id)
        await self._check_group(tenant, session_id, summary.model, group)
        with _kvstate():
            return await self._records.pin(tenant, session_id, group)

    async def unpin(self, tenant: str, session_id: str) -> SessionSummary:
        """Lets routers choose again; fine for a session that is not pinned."""
        with _kvstate():
            return await self._records.pin(tenant, session_id, "")

    async def move(self, tenant: str, session_id: str, group: str) -> Warmed:
        """Has a group bring the session's KV into its memory, and be where the next turn goes.

        Raises:
            Conflict: the session is pinned to another group.
            InvalidRequest: its model has no such group.
        """
        summary = await self.summary(tenant, session_id)
        if summary.pinned_group not in {"", group}:
            raise Conflict(
                f"session {session_id!r} is pinned to {summary.pinned_group!r}, where its turns would go all "
                f"the same: free it first, or pin it to {group!r}",
                session_id=session_id,
                group=summary.pinned_group,
            )
        await self._check_group(tenant, session_id, summary.model, group)
        async with self.fleet.slot(tenant):
            return await self.fleet.warm(tenant, session_id, group)

    async def delete(self, tenant: str, session_id: str) -> None:
        """Removes the session: text, tokens, pin, and the KV that no other session holds."""
        with _kvstate():
            await self._records.delete(tenant, session_id)

    async def _store(self, record: SessionRecord) -> bool:
        """Commits a record; False if the store has a newer one, or one of that version."""
        too_large = RequestTooLarge(
            f"session {record.session_id!r} is larger than the store takes (RYZ_SESSION_MAX_BYTES, and "
            f"{MAX_SESSION_MESSAGES} messages)",
            reason="session_size",
        )
        try:
            with _kvstate():
                outcome = await self._records.commit([record])
        except RequestTooLarge as error:  # it does not even fit into a message
            raise too_large from error
        if outcome.too_large:
            raise too_large
        if outcome.over_quota:
            raise RateLimited(
                f"session {record.session_id!r} was not stored: the tenant has as many sessions, or bytes of "
                "them, as it may have. Delete some, or have RYZ_SESSION_MAX_PER_TENANT or "
                "RYZ_SESSION_BYTES_PER_TENANT raised",
                reason="session_quota",
            )
        return not outcome.stale

    async def _taken(self, tenant: str, session_id: str) -> Conflict:
        """The error for a new record that was not stored."""
        try:
            await self.summary(tenant, session_id)
        except SessionNotFound:  # deleted since `created_ms`, by the store's clock: it has to stay so
            problem = "was deleted at this moment: try again in a second"
        else:
            problem = "exists already: choose another id, delete it, or import over it with `replace`"
        return Conflict(f"session {session_id!r} {problem}", session_id=session_id)

    async def _check_group(self, tenant: str, session_id: str, model: str, group: str) -> None:
        groups = (await self.fleet.route(tenant, session_id, model)).groups
        if group not in groups:
            raise InvalidRequest(
                f"no group {group!r} serves the model {model!r}; {_named(groups)}",
                param="group",
                reason="unknown_group",
            )


def _named(groups: Mapping[str, str]) -> str:
    if not groups:
        return "none does at the moment"
    return "there are " + ", ".join(f"{name} ({groups[name]})" for name in sorted(groups))


def _kvstate() -> AbstractContextManager[None]:
    return asking("the KV state service", "session_store")
