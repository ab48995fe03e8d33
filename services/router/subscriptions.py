"""The router's subscriptions: requests, heartbeats and queries.

All handlers but those of `state_server` run one after another and wait for nothing. A decision takes some
microseconds, and one that waited would rest on old heartbeats. `state_server` asks the KV state service where
a session was last served.
"""

import asyncio
from collections.abc import Awaitable
from functools import lru_cache

import msgspec
import structlog
from msgspec.structs import replace

from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.domain.adapters import adapters_not_read
from services.router.domain.groups.fleet import Change
from services.router.incoming import Incoming, models_query, read, sender
from services.router.last_groups import LastGroups
from services.router.losses import LossReports
from services.router.outside.gate import OutsideGate
from shared import subjects
from shared.bus import Bus, Handler, Message, Subscription
from shared.bus.endpoint import Endpoint
from shared.bus.subject import can_answer
from shared.errors import InvalidRequest, RyzError
from shared.messages import ErrorReply, Heartbeat, ListModels, ModelList
from shared.messages.adapters import listed
from shared.subjects import caller_of, tenant_of
from shared.telemetry.repeated import RepeatedLog
from shared.telemetry.request_ids import TRACE_PARENT, bind_request

LOOKUPS_AT_ONCE = 256
log = structlog.get_logger(__name__)
_LOSING: frozenset[Change] = frozenset({"restarted", "lost"})
_NEW: frozenset[Change] = frozenset({"joined", "restarted"})
_heartbeat_subject = lru_cache(maxsize=4096)(subjects.heartbeat)  # many times a second, of few groups


class RouterSubscriptions:
    """The subscriptions around a `Dispatcher`."""

    def __init__(
        self,
        context: RouterContext,
        dispatcher: Dispatcher,
        losses: LossReports,
        outside: Bus,
        gate: OutsideGate,
    ) -> None:
        self._bus = context.bus
        self._outside = outside
        self._gate = gate
        self._dispatcher = dispatcher
        self._losses = losses
        self._fleet = context.fleet
        self._state = context.state
        self._metrics = context.metrics
        self._settings = context.settings
        self._clock = context.clock
        self._repeated = RepeatedLog(log)
        self._taking: list[Subscription] = []
        asks = context.settings.router_policy == "state_server"
        timeout_s = context.settings.constants.lookup_timeout_s
        self._last_groups = LastGroups(context.bus, timeout_s) if asks else None

    async def listen(self) -> None:
        """Subscribes to heartbeats, and to the broker's reports of work that had no receiver."""
        heartbeats = Endpoint(self._bus, self._report_heartbeat)
        await self._bus.subscribe(
            subjects.HEARTBEAT_ALL, heartbeats.listener(Heartbeat, self.on_heartbeat, check=_check_subject)
        )
        await self._bus.subscribe(f"{self._dispatcher.inbox}.*.*", self.on_undelivered)

    async def take_requests(self) -> None:
        """Subscribes to requests as a member of the queue group, to queries and unanswered requests alone.

        Every router answers queries, so that one which stands still delays none.
        """
        queue, max_pending = subjects.ROUTER_QUEUE, self._settings.constants.max_pending
        at_once = LOOKUPS_AT_ONCE if self._last_groups else 0
        models = Endpoint(self._bus, lambda *_: self._metrics.event("bad_query"))
        self._taking = [
            await self._bus.subscribe(
                subjects.GENERATE_ALL,
                self.on_generate,
                queue=queue,
                max_concurrent=at_once,
                max_pending=max_pending,
            ),
            await self._outside.subscribe(
                subjects.generate_all(subjects.ANY_CALLER),
                self.on_outside,
                queue=queue,
                max_concurrent=at_once,
                max_pending=max_pending,
                max_per_s=self._settings.router_outside_calls_s,
            ),
            await self._bus.subscribe(
                subjects.AGAIN_ALL, self.on_generate, max_concurrent=at_once, max_pending=max_pending
            ),
            await self._outside.subscribe(
                subjects.again_all(subjects.ANY_CALLER),
                self.on_outside_again,
                max_concurrent=at_once,
                max_pending=max_pending,
                max_per_s=self._settings.router_outside_calls_s,
            ),
            await self._bus.subscribe(
                subjects.MODELS,
                self._in_json(models.handler(ListModels, self.list_models)),
                max_pending=max_pending,
            ),
            await self._outside.subscribe(
                subjects.models(subjects.ANY_CALLER),
                self._own_inbox(self._in_json(models.handler(ListModels, self.list_models))),
                max_pending=max_pending,
                max_per_s=self._settings.router_outside_calls_s,
            ),
        ]

    async def stop_taking(self) -> None:
        """Takes no more requests, and dispatches those that the broker has delivered already.

        Forwarded requests that no leader took are still sent elsewhere.
        """
        await asyncio.gather(*(subscription.drain() for subscription in self._taking))
        self._taking.clear()
        if not self._bus.connected:
            return
        # the broker answers in order: behind two flushes it reports no more undelivered work
        await self._bus.flush()
        await self._bus.flush()

    def on_generate(self, message: Message) -> Awaitable[None] | None:
        """A service's request."""
        now = self._clock()
        try:
            incoming = read(message, now)
        except RyzError as error:
            return self._dispatcher.fail_request(sender(message), error, "invalid")
        if self._last_groups and incoming.session_id:
            return self._route(incoming, now)
        return self._dispatcher.dispatch_now(incoming, now)

    async def on_outside(self, message: Message) -> None:
        """The request of a user outside."""
        now = self._clock()
        incoming = await self._gate.admit(message, now)
        if incoming is not None:
            await self._route(incoming, self._clock())

    async def on_outside_again(self, message: Message) -> None:
        """Such a request that no group has answered."""
        incoming = await self._gate.admit(message, self._clock(), again=True)
        if incoming is not None:
            await self._route(incoming, self._clock())

    async def _route(self, incoming: Incoming, now: float) -> None:
        if self._last_groups and incoming.session_id:
            with bind_request(incoming.request_id, incoming.headers.get(TRACE_PARENT, "")):
                incoming = await self._looked_up(self._last_groups, incoming)
            now = self._clock()
        await self._dispatcher.dispatch(incoming, now)

    async def on_undelivered(self, message: Message) -> None:
        """The broker reports that a request had no receiver; other messages here are strays.

        So is a report of an earlier sending: a copy of the request is on its way to another group, or to a
        new leader of the same one, which must not be given up for it.
        """
        number, key = message.subject.split(".")[-2:]
        forwards, now = self._state.forwards, self._clock()
        forward = forwards.get(key, now) if message.no_responders else None
        if forward is None or str(forward.number) != number:
            self._metrics.event("stray_reply")
            return
        forwards.pop(key, now)
        self._metrics.event("undelivered")
        if forward.incoming.unit is not None:
            forward.incoming.unit.note_returned()
        if self._fleet.mark_lost(forward.group, "no_responders", now):
            await self._losses.publish_losses()
        await self._dispatcher.dispatch_again(forward, now)

    def on_heartbeat(self, heartbeat: Heartbeat, _: Message) -> Awaitable[None] | None:
        """Handles a leader's heartbeat; returns an awaitable if something has to be published."""
        change = self._fleet.observe(heartbeat, self._clock())
        if change == "same":
            return None
        if change in _NEW:
            self._state.models.tenants.note(heartbeat.group, heartbeat.model)
        self._report_change(heartbeat, change)
        # what is awaited lets later heartbeats wait, and an echo that came behind them overtakes them
        return self._losses.publish_losses() if change in _LOSING else None

    def _report_change(self, heartbeat: Heartbeat, change: Change) -> None:
        self._metrics.event(f"heartbeat_{change}")
        self._metrics.knows(heartbeat.group)
        if change == "tripped":
            log.warning("breaker tripped", group=heartbeat.group, reason="broken generations",
                        broken_total=heartbeat.broken_total, ended_total=heartbeat.ended_total)  # fmt: skip
            self._metrics.event("group_tripped")
        elif change == "rival":
            log.warning("two leaders have one name", group=heartbeat.group,
                        group_instance=self._fleet.instance_of(heartbeat.group),
                        ignored_instance=heartbeat.instance_id,
                        remedy="end one of them, or give it another RYZ_GROUP")  # fmt: skip
        elif change not in {"ignored", "lost"}:
            log.info("group", change=change, group=heartbeat.group, state=heartbeat.state,
                     model=heartbeat.model.name, group_instance=heartbeat.instance_id)  # fmt: skip

    async def list_models(self, query: ListModels, message: Message) -> ModelList | None:
        """Returns the models that can be routed to, those whose groups are all away, and what hosts offer.

        Raises:
            Unavailable: Adapters are asked for, and the register was not read yet.
        """
        if not message.reply:
            return None
        register, base = self._state.adapters, query.adapters_of
        if base and not register.is_current:
            raise adapters_not_read(base).error()
        book, tenant = self._state.models, tenant_of(message.subject, query.tenant)
        adapters = register.of_base(base) if not tenant or book.admits(base, tenant, self._fleet) else []
        now = self._clock()
        return replace(
            book.list_for(tenant, self._fleet, now),
            adapters=[listed(one) for one in adapters],
            settled=self._dispatcher.has_heard_all(now),
        )

    def _in_json(self, handle: Handler) -> Handler:
        """Returns a handler that answers a query in JSON in JSON; `handle` has all others.

        No message in MessagePack begins like an object in JSON.
        """

        async def answer(message: Message) -> None:
            query = models_query(message.data)
            if query is None:
                waits = handle(message)
                if waits is not None:
                    await waits
                return
            found: ModelList | ErrorReply | None
            try:
                found = await self.list_models(query, message)
            except RyzError as error:
                found = ErrorReply(error=error.code, message=error.message, data=error.data)
            if found is not None:
                await self._bus.publish(message.reply, msgspec.json.encode(found))

        return answer

    def _own_inbox(self, handle: Handler) -> Handler:
        """Returns a handler that drops queries whose answer would go to the inbox of another caller."""

        async def checked(message: Message) -> None:
            if can_answer(message.reply, caller_of(message.subject)):
                waits = handle(message)
                if waits is not None:
                    await waits
            else:
                self._metrics.event("bad_query")

        return checked

    def _report_heartbeat(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("bad heartbeat", subject=message.subject, error=error.message)
        self._metrics.event("bad_heartbeat")

    async def _looked_up(self, last_groups: LastGroups, incoming: Incoming) -> Incoming:
        if incoming.lost_group:
            return incoming
        last = await last_groups.find(incoming.asker.tenant, incoming.session_id)
        return replace(incoming, facts=replace(incoming.facts, last_group=last)) if last else incoming


def _check_subject(heartbeat: Heartbeat, message: Message) -> None:
    if message.subject != _heartbeat_subject(heartbeat.group):
        raise InvalidRequest(
            f"a heartbeat of group {heartbeat.group!r} came on {message.subject}", param="group"
        )
