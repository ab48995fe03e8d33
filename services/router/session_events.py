"""What a router hears of sessions, and what it tells of them: turns that ended, pins, deletions, routes."""

from typing import TypeVar

import structlog

from services.router.domain.session_memory import Session
from services.router.router_context import Parts
from shared import subjects
from shared.bus import Message, Subscription
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.identity import session_key
from shared.messages import (
    ErrorReply,
    Pinned,
    SessionGone,
    SessionRoute,
    SessionRouteQuery,
    SessionTurns,
    Wire,
)
from shared.telemetry.repeated import RepeatedLog

W = TypeVar("W", bound=Wire)
log = structlog.get_logger(__name__)


class SessionNews:
    """Subscriptions around what is remembered of sessions."""

    def __init__(self, parts: Parts) -> None:
        self._bus = parts.bus
        self._fleet = parts.fleet
        self._memory = parts.memory
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._repeated = RepeatedLog(log)
        self._taking: Subscription | None = None

    async def listen(self) -> None:
        """Learns from here on; every router hears all of it."""
        await self._bus.subscribe(subjects.SESSION_TURNS, self.on_turns)
        await self._bus.subscribe(subjects.SESSION_PINNED, self.on_pinned)
        await self._bus.subscribe(subjects.SESSION_GONE, self.on_gone)

    async def take(self) -> None:
        """Answers queries from here on, as a member of the queue group."""
        self._taking = await self._bus.subscribe(
            subjects.SESSION_ROUTE, self.on_route, queue=subjects.ROUTER_QUEUE
        )

    async def leave(self) -> None:
        """Answers no more."""
        if self._taking is not None:
            await self._taking.drain()

    async def on_turns(self, message: Message) -> None:
        """Where sessions are now."""
        news = await self._read(message, SessionTurns)
        now = self._clock()
        for turn in news.turns if news else ():
            found = Session(turn.group, turn.num_tokens)
            self._memory.sessions.turned(
                turn.tenant, turn.session_id, session_key(turn.session_id), found, now
            )

    async def on_pinned(self, message: Message) -> None:
        """A session was bound to a group, or freed."""
        pin = await self._read(message, Pinned)
        if pin and not self._memory.pins.tell(pin.tenant, pin.session_id, pin.group):
            log.warning("too many pins, one does not count", session_id=pin.session_id,
                        remedy="raise RYZ_ROUTER_PINS_MAX")  # fmt: skip
            self._metrics.event("pins_over_limit")

    async def on_gone(self, message: Message) -> None:
        """A session was deleted."""
        gone = await self._read(message, SessionGone)
        if gone:
            key = session_key(gone.session_id)
            self._memory.sessions.forget(gone.tenant, gone.session_id, key, self._clock())
            self._memory.pins.tell(gone.tenant, gone.session_id, "")

    async def on_route(self, message: Message) -> None:
        """A query for where a session would go."""
        query = await self._read(message, SessionRouteQuery)
        if query is None or not message.reply:
            return
        now, key = self._clock(), session_key(query.session_id)
        view = self._fleet.view(query.model, now)
        known = self._memory.sessions.find(query.tenant, query.session_id, key, now)
        home = view.home(key)
        route = SessionRoute(
            home=home.name if home else "",
            pinned_group=self._memory.pins.group_of(query.tenant, query.session_id),
            last_group=known.group if known else "",
            groups={**view.away, **{group.name: "ready" for group in view.ready}},
        )
        await self._bus.publish(message.reply, encode(route))

    async def _read(self, message: Message, kind: type[W]) -> W | None:
        try:
            return decode(message.data, kind)
        except InvalidRequest as error:
            self._metrics.event("bad_session_news")
            self._repeated.warning("bad message", subject=message.subject, error=error.message)
            if message.reply:
                failure = ErrorReply(error=error.code, message=error.message, data=error.data)
                await self._bus.publish(message.reply, encode(failure))
            return None
