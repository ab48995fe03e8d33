"""Answers the session calls of the bus from the store: each call gets its answer, or an `ErrorReply`.

The rules are the domain's; time limits and what happens while the store is away are `guarded_store.py`'s.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from services.kvstate.domain.records import make_cursor, make_entry, read_cursor
from services.kvstate.metrics import Metrics
from services.kvstate.store import SessionStore
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import decode, encode
from shared.errors import Internal, RyzError, SessionNotFound
from shared.messages import (
    ErrorReply,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionGet,
    SessionList,
    SessionPage,
)

Call = Callable[[bytes], Awaitable[bytes]]
_FOUND = b"\x81\xa6record"  # a MessagePack map with one key, `record`; its value follows
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HandlerLimits:
    """Calls of each kind that run at once and that may wait, and the largest record in bytes."""

    max_concurrent: int = 32
    max_pending: int = 4096
    max_record_bytes: int = 512 * 1024
    ttl_s: float = 604_800.0


def found_reply(record: bytes) -> bytes:
    """An encoded `SessionFound` around an encoded record, which is not decoded for it."""
    return _FOUND + record


class Handlers:
    """The service's side of the session subjects. Several calls run at once, in no order."""

    def __init__(self, bus: Bus, store: SessionStore, metrics: Metrics, limits: HandlerLimits) -> None:
        self._bus = bus
        self._store = store
        self._metrics = metrics
        self._limits = limits
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Takes calls from here on, as a member of the queue group."""
        calls: tuple[tuple[str, str, Call], ...] = (
            ("get", subjects.SESSION_GET, self._get),
            ("commit", subjects.SESSION_COMMIT, self._commit),
            ("list", subjects.SESSION_LIST, self._list),
            ("delete", subjects.SESSION_DELETE, self._delete),
        )
        for name, subject, call in calls:
            subscription = await self._bus.subscribe(
                subject,
                self._answering(name, call),
                queue=subjects.KVSTATE_QUEUE,
                max_concurrent=self._limits.max_concurrent,
                max_pending=self._limits.max_pending,
            )
            self._subscriptions.append(subscription)

    async def stop(self) -> None:
        """Takes no more calls; those that run go on."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

    def _answering(self, name: str, call: Call) -> Callable[[Message], Awaitable[None]]:
        """A handler that runs the call, answers, and counts."""

        async def handle(message: Message) -> None:
            started = time.perf_counter()
            outcome = "ok"
            try:
                reply = await call(message.data)
                await self._reply(message, reply)
            except RyzError as error:
                outcome = error.code
                await self._reply_error(message, error)
            except Exception:
                outcome = Internal.code
                log.exception("call failed", call=name)
                await self._reply_error(
                    message, Internal(f"session {name} failed; the log of the KV state service has the trace")
                )
            finally:
                self._metrics.requests.labels(name, outcome).inc()
                self._metrics.seconds.labels(name).observe(time.perf_counter() - started)

        return handle

    async def _reply(self, message: Message, reply: bytes) -> None:
        if message.reply:
            await self._bus.publish(message.reply, reply)

    async def _reply_error(self, message: Message, error: RyzError) -> None:
        failure = ErrorReply(error=error.code, message=error.message, data=error.data)
        try:
            await self._reply(message, encode(failure))
        except RyzError as problem:  # broker gone, or no such subject: nobody to tell
            log.warning("error not delivered", error=error.message, problem=problem.message)

    async def _get(self, data: bytes) -> bytes:
        query = decode(data, SessionGet)
        record = await self._store.get(query.tenant, query.session_id)
        if record is None:
            raise _not_found(query.session_id)
        return found_reply(record)

    async def _commit(self, data: bytes) -> bytes:
        now_ms, ttl_ms = time.time_ns() // 1_000_000, int(self._limits.ttl_s * 1000)
        entries = [make_entry(record, now_ms, ttl_ms) for record in decode(data, SessionCommit).records]
        limit = self._limits.max_record_bytes
        too_large = [place for place, entry in enumerate(entries) if len(entry.record) > limit]
        fitting = [place for place, entry in enumerate(entries) if len(entry.record) <= limit]
        stored = await self._store.put([entries[place] for place in fitting]) if fitting else []
        stale = [place for place, ok in zip(fitting, stored, strict=True) if not ok]
        counts = (("stored", sum(stored)), ("stale", len(stale)), ("too_large", len(too_large)))
        for outcome, count in counts:
            self._metrics.commits.labels(outcome).inc(count)
        if too_large:
            log.warning("records over the limit were not stored", limit_bytes=limit, count=len(too_large))
        return encode(SessionCommitted(stale=stale, too_large=too_large))

    async def _list(self, data: bytes) -> bytes:
        query = decode(data, SessionList)
        page = await self._store.page(query.tenant, query.limit, read_cursor(query.cursor))
        cursor = make_cursor(page.last.score_ms, page.last.session_id) if page.last else ""
        return encode(SessionPage(sessions=page.sessions, cursor=cursor))

    async def _delete(self, data: bytes) -> bytes:
        query = decode(data, SessionDelete)
        if not await self._store.delete(query.tenant, query.session_id):
            raise _not_found(query.session_id)
        return encode(SessionDeleted(session_id=query.session_id))


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"no session {session_id!r}; it may have expired", session_id=session_id)
