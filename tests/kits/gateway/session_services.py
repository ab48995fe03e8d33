"""A scripted object that stands in for all services behind the session calls, on any bus.

It stores pins and records (a higher version wins, as in the real store) and reports the groups set by a test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared import subjects
from shared.bus import Bus, Handler, Message, Subscription
from shared.codec import decode, encode
from shared.errors import RyzError, SessionNotFound
from shared.identity import is_made_session_id
from shared.messages import (
    ErrorReply,
    HoldersQuery,
    Holding,
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
    SessionRoute,
    SessionRouteQuery,
    SessionSummary,
    Warmed,
    WarmSession,
    Wire,
)

Key = tuple[str, str]


@dataclass
class SessionServices:
    """KV state service, router and leaders; `groups` maps the model's groups to their states."""

    bus: Bus
    groups: dict[str, str] = field(default_factory=lambda: {"g0": "ready", "g1": "ready"})
    holdings: dict[str, int] = field(default_factory=dict)
    records: dict[Key, SessionRecord] = field(default_factory=dict)
    pins: dict[Key, str] = field(default_factory=dict)
    last: dict[Key, str] = field(default_factory=dict)
    warmed: list[tuple[str, WarmSession]] = field(default_factory=list)
    max_sessions: int = 1000
    failing: dict[str, RyzError] = field(default_factory=dict)
    max_record_bytes: int = 100_000
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    async def start(self) -> "SessionServices":
        for subject, handler in (
            (subjects.SESSION_GET, self._get),
            (subjects.SESSION_COMMIT, self._commit),
            (subjects.SESSION_LIST, self._list),
            (subjects.SESSION_DELETE, self._delete),
            (subjects.SESSION_DESCRIBE, self.describe),
            (subjects.SESSION_PIN, self._pin),
            (subjects.SESSION_ROUTE, self._route),
            *((subjects.warm(group), self._warm) for group in self.groups),
        ):
            await self.listen(subject, handler)
        self.subscriptions[subjects.KV_HOLDERS] = await self.bus.subscribe(subjects.KV_HOLDERS, self._held)
        return self

    async def stop(self) -> None:
        for subject in tuple(self.subscriptions):
            await self.leave(subject)

    async def listen(self, subject: str, handler: Callable[[Message], Wire]) -> None:
        """Answers messages on `subject` with the result of `handler`."""
        self.subscriptions[subject] = await self.bus.subscribe(subject, self._answering(handler))

    async def leave(self, subject: str) -> None:
        """Ends the subscription to `subject`."""
        await self.subscriptions.pop(subject).unsubscribe()

    def _answering(self, handler: Callable[[Message], Wire]) -> Handler:
        async def handle(message: Message) -> None:
            reply: Wire
            try:
                if message.subject in self.failing:
                    raise self.failing[message.subject]
                reply = handler(message)
            except RyzError as error:
                reply = ErrorReply(error=error.code, message=error.message, data=error.data)
            await self.bus.publish(message.reply, encode(reply))

        return handle

    def _known(self, tenant: str, session_id: str) -> SessionRecord:
        record = self.records.get((tenant, session_id))
        if record is None:
            raise SessionNotFound(f"no session {session_id!r}; it may have expired")
        return record

    def _summary(self, record: SessionRecord) -> SessionSummary:
        return SessionSummary(
            session_id=record.session_id,
            tenant=record.tenant,
            model=record.model,
            version=record.version,
            turns=record.turns,
            num_messages=len(record.messages),
            num_tokens=len(record.token_ids) // 4,
            last_group=record.last_group,
            created_ms=record.created_ms,
            updated_ms=record.updated_ms,
            ttl_s=600,
            pinned_group=self.pins.get((record.tenant, record.session_id), ""),
            kv_bytes=4096,
            kv_blocks=2,
            kv_byte_seconds=8192.5,
            title=next((one.content for one in record.messages if one.role == "user"), "")[:96],
        )

    def _get(self, message: Message) -> Wire:
        query = decode(message.data, SessionGet)
        return SessionFound(record=self._known(query.tenant, query.session_id))

    def _commit(self, message: Message) -> Wire:
        stale, too_large, over_quota = [], [], []
        for index, record in enumerate(decode(message.data, SessionCommit).records):
            key = (record.tenant, record.session_id)
            stored = self.records.get(key)
            if len(encode(record)) > self.max_record_bytes:
                too_large.append(index)
            elif stored is not None and record.version <= stored.version:
                stale.append(index)
            elif stored is None and len(self.records) >= self.max_sessions:
                over_quota.append(index)
            else:
                self.records[key] = record
        return SessionCommitted(stale=stale, too_large=too_large, over_quota=over_quota)

    def _list(self, message: Message) -> Wire:
        query = decode(message.data, SessionList)
        mine = [record for (tenant, _), record in self.records.items() if tenant == query.tenant]
        if not query.spare:
            mine = [one for one in mine if one.turns != 1 or not is_made_session_id(one.session_id)]
        mine.sort(key=lambda record: (record.updated_ms, record.session_id), reverse=True)
        start = int(query.cursor or 0)
        rest = mine[start + query.limit :]
        page = [self._summary(record) for record in mine[start : start + query.limit]]
        return SessionPage(sessions=page, cursor=str(start + query.limit) if rest else "")

    def _delete(self, message: Message) -> Wire:
        query = decode(message.data, SessionDelete)
        self._known(query.tenant, query.session_id)
        del self.records[query.tenant, query.session_id]
        self.pins.pop((query.tenant, query.session_id), None)
        return SessionDeleted(session_id=query.session_id)

    def describe(self, message: Message) -> Wire:
        query = decode(message.data, SessionDescribe)
        return SessionDescribed(session=self._summary(self._known(query.tenant, query.session_id)))

    def _pin(self, message: Message) -> Wire:
        query = decode(message.data, SessionPin)
        record = self._known(query.tenant, query.session_id)
        self.pins[query.tenant, query.session_id] = query.group
        return SessionDescribed(session=self._summary(record))

    def _route(self, message: Message) -> Wire:
        query = decode(message.data, SessionRouteQuery)
        groups = self.groups if query.model == "demo" else {}
        last = self.last.get((query.tenant, query.session_id), "")
        return SessionRoute(home=min(groups, default=""), last_group=last, groups=groups)

    def _warm(self, message: Message) -> Wire:
        query = decode(message.data, WarmSession)
        record = self._known(query.tenant, query.session_id)
        group = message.subject.rpartition(".")[2]
        self.warmed.append((group, query))
        self.last[query.tenant, query.session_id] = group
        tokens = len(record.token_ids) // 4
        self.holdings[group] = tokens
        return Warmed(group=group, num_tokens=tokens, cached_tokens=tokens, fetched_tokens=tokens)

    async def _held(self, message: Message) -> None:
        query = decode(message.data, HoldersQuery)
        for group in self.groups:
            holding = Holding(
                group=group,
                model="demo",
                num_tokens=len(query.token_ids) // 4,
                cached_tokens=self.holdings.get(group, 0),
                tensor_parallel=2,
                kv_format="fp32",
            )
            await self.bus.publish(message.reply, encode(holding))


def with_turn(record: SessionRecord) -> SessionRecord:
    """The record after one more commit."""
    return replace(record, version=record.version + 1, turns=record.turns + 1)
