"""Keeps what this router knows of sessions: takes in turns, pins and deletions, and loads all pins regularly.

Answers where a session would go.
"""

import asyncio

import structlog

from services.router.context import RouterContext
from services.router.domain.pins import Pin, PinTable
from services.router.domain.session_memory import KnownSession
from services.router.metrics import RouterMetrics
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.bus.endpoint import Endpoint
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import InvalidRequest, RyzError
from shared.identity import session_key
from shared.messages import (
    Pinned,
    SessionGone,
    SessionRoute,
    SessionRouteQuery,
    SessionTurns,
)
from shared.telemetry.repeated import RepeatedLog

_POLL_S = 0.25  # how soon a connection that is back is seen
_RETRY_S = 2.0
_PAGE = 1000
log = structlog.get_logger(__name__)


class SessionEvents:
    """The subscriptions for sessions."""

    def __init__(self, context: RouterContext) -> None:
        self._bus = context.bus
        self._endpoint = Endpoint(context.bus, self._report_bad)
        self._fleet = context.fleet
        self._state = context.state
        self._metrics = context.metrics
        self._clock = context.clock
        self._repeated = RepeatedLog(log)
        self._taking: Subscription | None = None

    async def listen(self) -> None:
        """Subscribes to events; every router gets all of them."""
        listener = self._endpoint.listener
        await self._bus.subscribe(subjects.SESSION_TURNS, listener(SessionTurns, self.on_turns))
        await self._bus.subscribe(subjects.SESSION_PINNED, listener(Pinned, self.on_pinned))
        await self._bus.subscribe(subjects.SESSION_GONE, listener(SessionGone, self.on_gone))

    async def answer_queries(self) -> None:
        """Subscribes to queries; every router answers, so that one which stands still delays none."""
        handle = self._endpoint.handler(SessionRouteQuery, self.find_route)
        self._taking = await self._bus.subscribe(subjects.SESSION_ROUTE, handle)

    async def stop_answering(self) -> None:
        """Ends the subscription to queries."""
        if self._taking is not None:
            await self._taking.drain()

    def on_turns(self, news: SessionTurns, _: Message) -> None:
        """Turns have ended."""
        now = self._clock()
        for turn in news.turns:
            found = KnownSession(turn.group, turn.num_tokens)
            self._state.sessions.note_turn(
                turn.tenant, turn.session_id, session_key(turn.session_id), found, now
            )

    def on_pinned(self, pin: Pinned, _: Message) -> None:
        """A session was bound to a group, or freed."""
        if not self._state.pins.set_pin(pin.tenant, pin.session_id, pin.group):
            log.warning("too many pins, one does not count", session_id=pin.session_id,
                        remedy="raise RYZ_ROUTER_PINS_MAX")  # fmt: skip
            self._metrics.event("pins_over_limit")

    def on_gone(self, gone: SessionGone, _: Message) -> None:
        """A session was deleted."""
        key = session_key(gone.session_id)
        self._state.sessions.forget_session(gone.tenant, gone.session_id, key, self._clock())
        self._state.pins.set_pin(gone.tenant, gone.session_id, "")

    async def find_route(self, query: SessionRouteQuery, message: Message) -> SessionRoute | None:
        """Returns where a session would go."""
        if not message.reply:
            return None
        now, key = self._clock(), session_key(query.session_id)
        adapter = None
        if not self._state.models.has_model(query.model, self._fleet):
            adapter = self._state.adapters.find(query.model)
        view = self._fleet.view(adapter.base if adapter is not None else query.model, now)
        known = self._state.sessions.find(query.tenant, query.session_id, key, now)
        home = view.home(key)
        return SessionRoute(
            home=home.name if home else "",
            pinned_group=self._state.pins.group_of(query.tenant, query.session_id),
            last_group=known.group if known else "",
            groups={**view.away, **{group.name: "ready" for group in view.ready}},
        )

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._metrics.event("bad_session_news")
        self._repeated.warning("bad message", subject=message.subject, error=error.message)


class PinSync:
    """Keeps a `PinTable` in step with the KV state service; while that is away, the known pins stand."""

    def __init__(self, bus: Bus, pins: PinTable, metrics: RouterMetrics, refresh_s: float) -> None:
        self._bus = bus
        self._pins = pins
        self._metrics = metrics
        self._refresh_s = refresh_s
        self._client = SessionsClient(bus)

    async def load_pins(self) -> bool:
        """Load all pins; False if the KV state service did not answer."""
        self._pins.start_list()
        found: list[Pin] = []
        cursor = ""
        try:
            while True:
                page = await self._client.pins(limit=_PAGE, cursor=cursor)
                found.extend((pin.tenant, pin.session_id, pin.group) for pin in page.pins)
                if not page.cursor:
                    break
                cursor = page.cursor
        except RyzError as error:
            log.debug("pins not loaded, the known ones stand", error=error.message, known=len(self._pins))
            self._metrics.event("pins_not_loaded")
            return False
        if not self._pins.replace_list(found):
            log.warning(
                "too many pins, some do not count", pins=len(found), remedy="raise RYZ_ROUTER_PINS_MAX"
            )
            self._metrics.event("pins_over_limit")
        return True

    async def keep_pins(self) -> None:
        """Load them every `refresh_s`, and when the broker is back, as changes may have been missed."""
        loop = asyncio.get_running_loop()
        asked_at = due_at = float("-inf")
        while True:
            now = loop.time()
            if self._bus.connected and (now >= due_at or self._bus.restored_at > asked_at):
                asked_at = now
                wait_s = self._refresh_s if await self.load_pins() else min(_RETRY_S, self._refresh_s)
                due_at = loop.time() + wait_s
            await asyncio.sleep(min(_POLL_S, self._refresh_s))
