"""Sessions as objects: looked at, begun, pinned and moved, for gateways and for other services.

Joins what three kinds of services know of a session: its record and stored KV (the KV state service), where
its turns would go (a router), and who has its KV in memory (the leaders). A refused call has changed nothing.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import msgspec

from shared import subjects
from shared.bus import Bus, Message, NoResponders, RequestTimedOut
from shared.client.sessions import SessionsClient
from shared.codec import decode, decode_reply, encode
from shared.errors import Conflict, InvalidRequest, RequestTooLarge, RyzError, SessionNotFound, Unavailable
from shared.messages import (
    HoldersQuery,
    Holding,
    SessionPage,
    SessionRecord,
    SessionRoute,
    SessionRouteQuery,
    SessionSummary,
    Warmed,
    WarmSession,
)

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class SessionView:
    """All that is known of a session at one moment.

    route: None when no router answered. holdings: the groups with any of its KV in memory, by name.
    """

    summary: SessionSummary
    record: SessionRecord
    route: SessionRoute | None
    holdings: list[Holding]


class SessionAdmin:
    """Every call raises `Unavailable` with a reason when a service that it needs does not answer, and
    `SessionNotFound` when the tenant has no such session.

    timeout_s: how long each service may take. gather_s: how long leaders may take to say what they hold.
    """

    def __init__(self, bus: Bus, *, timeout_s: float = 2.0, gather_s: float = 0.1) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._gather_s = gather_s
        self._records = SessionsClient(bus, timeout_s=timeout_s)

    async def page(self, tenant: str, *, limit: int = 100, cursor: str = "") -> SessionPage:
        """A page of summaries, newest first; an empty cursor marks the last one."""
        with _kvstate():
            return await self._records.list(tenant, limit=limit, cursor=cursor)

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
        record = await self.record(tenant, session_id)
        route, ready = None, set[str]()
        with suppress(RyzError):
            route = await self.route(tenant, session_id, summary.model)
            ready = {name for name, state in route.groups.items() if state == "ready"}
        holdings = []
        with suppress(RyzError):
            holdings = await self.holders(tenant, record.token_ids, expected=ready)
        return SessionView(summary, record, route, [one for one in holdings if one.cached_tokens])

    async def create(self, record: SessionRecord, *, pinned_group: str = "") -> SessionSummary:
        """Stores a session that is not there yet; its record has version 1.

        Raises:
            Conflict: there is one of that id.
            InvalidRequest: there is no such group to pin it to.
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
            with suppress(RyzError):  # without an answer nobody knows what became of it: it may be there
                await self._records.delete(tenant, session_id)
            raise

    async def replace(self, record: SessionRecord) -> SessionSummary:
        """Stores a session in place of what is there under its id, if anything; its version is set here.

        Raises:
            Conflict: the session had a turn meanwhile.
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
        message = WarmSession(tenant=tenant, session_id=session_id)
        with _asking(f"group {group!r}", "group_away"):
            answer = await self._bus.request(subjects.warm(group), encode(message), timeout_s=self._timeout_s)
            return decode_reply(answer.data, Warmed)

    async def delete(self, tenant: str, session_id: str) -> None:
        """Removes the session: text, tokens, pin, and the KV that no other session holds."""
        with _kvstate():
            await self._records.delete(tenant, session_id)

    async def route(self, tenant: str, session_id: str, model: str) -> SessionRoute:
        """Where a session of that model would go, and the model's groups with their states."""
        message = SessionRouteQuery(tenant=tenant, session_id=session_id, model=model)
        with _asking("the router", "no_router"):
            answer = await self._bus.request(
                subjects.SESSION_ROUTE, encode(message), timeout_s=self._timeout_s
            )
            return decode_reply(answer.data, SessionRoute)

    async def holders(
        self, tenant: str, token_ids: bytes, *, expected: Collection[str] = ()
    ) -> list[Holding]:
        """What leaders have in memory of a sequence of packed token ids, in the order of their groups.

        expected: groups after whose answers nobody else is waited for; empty: the whole time is waited out.
        """
        held: dict[str, Holding] = {}
        complete = asyncio.Event()

        async def collect(message: Message) -> None:
            if not message.no_responders:
                holding = decode(message.data, Holding)
                held[holding.group] = holding
            if message.no_responders or (expected and held.keys() >= set(expected)):
                complete.set()

        inbox = self._bus.new_inbox()
        subscription = await self._bus.subscribe(inbox, collect)
        try:
            query = HoldersQuery(tenant=tenant, token_ids=token_ids)
            await self._bus.publish(subjects.KV_HOLDERS, encode(query), reply=inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await complete.wait()
        finally:
            await subscription.unsubscribe()
        return [held[group] for group in sorted(held)]

    async def _store(self, record: SessionRecord) -> bool:
        """Commits a record; False: the store has a newer one, or one of that version."""
        with _kvstate():
            outcome = await self._records.commit([record])
        if outcome.too_large:
            raise RequestTooLarge(
                f"session {record.session_id!r} is larger than the store takes (RYZ_SESSION_MAX_BYTES)",
                reason="session_size",
            )
        return not outcome.stale

    async def _taken(self, tenant: str, session_id: str) -> Conflict:
        """Why a new record was not stored."""
        try:
            await self.summary(tenant, session_id)
        except SessionNotFound:  # deleted since `created_ms`, by the store's clock: it has to stay so
            problem = "was deleted at this moment: try again in a second"
        else:
            problem = "exists already: choose another id, delete it, or import over it with `replace`"
        return Conflict(f"session {session_id!r} {problem}", session_id=session_id)

    async def _check_group(self, tenant: str, session_id: str, model: str, group: str) -> None:
        groups = (await self.route(tenant, session_id, model)).groups
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


@contextmanager
def _asking(whom: str, reason: str) -> Iterator[None]:
    """Says who did not answer, and when to try again."""
    try:
        yield
    except (NoResponders, RequestTimedOut) as error:
        raise Unavailable(
            f"{whom} does not answer; try again in a moment", reason=reason, retry_after_s=RETRY_S
        ) from error
    except Unavailable as error:
        if error.retry_after_s is not None:
            raise
        raise Unavailable(error.message, **{**error.data, "retry_after_s": RETRY_S}) from error


def _kvstate() -> AbstractContextManager[None]:
    return _asking("the KV state service", "session_store")
