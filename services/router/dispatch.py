"""Carries out decisions: hands a request to its group, or sends the caller a refusal.

Every request ends in exactly one of the two, unless the broker is gone. Then the caller hears nothing and
publishes the request again.
"""

import random
import time
from collections.abc import Awaitable, Mapping
from functools import lru_cache, partial

import structlog
from msgspec.structs import replace

from services.router.context import RouterContext
from services.router.decision_log import DecisionLog
from services.router.domain.adapters import Meant, resolve
from services.router.domain.decision import Assignment, Decision, FleetView, Refusal, RequestFacts
from services.router.domain.groups.busy_machine import BusyMachine
from services.router.domain.models.demand import RequestKey
from services.router.domain.models.refusals import WAKING
from services.router.domain.policies.base import RETRY_STARTING_S, not_known_yet
from services.router.domain.policies.choice import at_a_full_group, choose
from services.router.incoming import Incoming, Sender, guest_needs
from services.router.state import Forward
from shared import subjects
from shared.bus.accounts import INBOX
from shared.codec import encode
from shared.errors import DeadlineExceeded, RequestTooLarge, RyzError, Unavailable
from shared.guest_needs import GUEST_CANNOT
from shared.messages import Failed, FrameBatch, Route, Work
from shared.telemetry.repeated import RepeatedLog
from shared.telemetry.request_ids import TRACE_PARENT, bind_request

_JITTER = 0.2  # of the time to come back
log = structlog.get_logger(__name__)
_work_subject = lru_cache(maxsize=4096)(subjects.work)  # of few groups


class Dispatcher:
    """Chooses a group for each request and sends it there.

    Attributes:
        inbox: Where the broker reports work that had no receiver; number and key of the sending follow.
    """

    def __init__(self, context: RouterContext) -> None:
        self.inbox = context.bus.new_inbox()
        self._router_id = context.settings.instance_id
        self._max_forwards = context.settings.constants.max_forwards
        self._bus = context.bus
        self._fleet = context.fleet
        self._policy = context.policy
        self._decisions = DecisionLog(context.metrics, context.costs, context.spans)
        self._metrics = context.metrics
        self._state = context.state
        self._models_changed = context.models_changed
        self._timelines = context.timelines
        self._repeated = RepeatedLog(log)
        self._sent = 0
        # until then groups may be there that this router has not heard, as after an outage of the broker
        self._settle_s = context.settings.constants.reconnect_s  # 0: none is waited for
        self._settled_at = context.clock() + self._settle_s
        self._pressure, self._machine = context.pressure, BusyMachine()

    async def dispatch(self, incoming: Incoming, now: float, count: int = 1) -> None:
        """Send the request to a group, the `count`-th that it is offered to, or answer with an error."""
        waits = self.dispatch_now(incoming, now, count)
        if waits is not None:
            await waits

    def dispatch_now(self, incoming: Incoming, now: float, count: int = 1) -> Awaitable[None] | None:
        """Like `dispatch`, without awaiting; returns an awaitable for a pending error or a slow publish."""
        with bind_request(incoming.request_id, incoming.headers.get(TRACE_PARENT, "")):
            return self._dispatch(incoming, now, count)

    def _dispatch(self, incoming: Incoming, now: float, count: int) -> Awaitable[None] | None:
        if incoming.deadline is not None and incoming.deadline <= now:
            late = DeadlineExceeded("the request's time was over before it was given to a group")
            return self.fail_request(_sender(incoming), late, "late")
        timeline = self._timelines.draft(incoming.request_id, incoming.attempt)
        timeline.mark("routed", {"copy": count})
        started = time.perf_counter()
        meant = self._meant(incoming, now)
        if isinstance(meant, Refusal):
            timeline.mark("refused", {"reason": meant.reason})
            self._timelines.keep(timeline)
            self._decisions.record_refusal(incoming, meant.reason, time.perf_counter() - started)
            return self._refuse(incoming, meant)
        facts, turn_tokens = self._state.sessions.complete_facts(meant.facts, incoming.asker, now)
        view, decision = self._decide(incoming, facts, now)
        if isinstance(decision, Assignment):
            seconds = time.perf_counter() - started
            move = self._decisions.record_assignment(incoming, facts, view, decision, seconds)
            timeline.mark("decided", {"group": decision.group, "reason": decision.reason})
            self._timelines.keep(timeline)
            tokens = facts.prompt_tokens + move.computed_tokens, turn_tokens - facts.prompt_tokens
            return self._send(
                incoming, Meant(facts, meant.adapter), decision, now=now, count=count, tokens=tokens
            )
        waits = False
        if not view.ready:
            waits = self._state.models.demand.waits(view.model, _wish_of(incoming))
            decision = self._without_group(incoming, view, decision, now)
        if not (waits and decision.reason == WAKING):  # it comes again and again: its first refusal is kept
            timeline.mark("refused", {"reason": decision.reason})
            self._timelines.keep(timeline)
            self._decisions.record_refusal(incoming, decision.reason, time.perf_counter() - started)
        return self._refuse(incoming, decision)

    def _meant(self, incoming: Incoming, now: float) -> Meant | Refusal:
        """What a request's name means; what is for other tenants is refused as a name that nothing has."""
        facts, book, fleet = incoming.facts, self._state.models, self._fleet
        base, colon, _ = facts.model.rpartition(":")
        of_adapter = colon and not book.has_model(facts.model, fleet)
        if not book.admits(base if of_adapter else facts.model, incoming.asker.tenant, fleet):
            return self._unknown(incoming, facts.model, now)
        if not of_adapter:
            return Meant(facts)
        return resolve(facts, self._state.adapters, lambda name: book.has_model(name, fleet))

    def _without_group(self, incoming: Incoming, view: FleetView, usual: Refusal, now: float) -> Refusal:
        """The refusal where no group of the model takes requests; a request that can wait is noted."""
        if usual.reason == GUEST_CANNOT:
            return usual
        book, model = self._state.models, view.model
        refusal = book.refusal(model, self._fleet, now)
        if refusal is not None:
            if refusal.reason == WAKING and book.demand.note(model, _wish_of(incoming), now):
                self._models_changed.set()
            return refusal
        return usual if view.away else self._unknown(incoming, model, now)

    def _unknown(self, incoming: Incoming, model: str, now: float) -> Refusal:
        """The refusal for a model that is not there, or not for this tenant."""
        unknown = self._state.models.unknown(model, incoming.asker.tenant, self._fleet, now)
        if unknown.code == "model_not_found" and not self.has_heard_all(now):
            return not_known_yet(model)
        return unknown

    def has_heard_all(self, now: float) -> bool:
        """Whether groups and hosts have had the time to be heard; on a busy machine they are late."""
        self._machine.note(self._pressure(now), now)
        late_s = self._machine.patience_s(now) if self._settle_s else 0.0
        return now >= self._settled_at + late_s

    async def dispatch_again(self, forward: Forward, now: float) -> None:
        """Send a request elsewhere that no leader took where it was sent."""
        if forward.count < self._max_forwards:
            await self.dispatch(forward.incoming, now, forward.count + 1)
            return
        message = f"{forward.count} groups were chosen and none took the request"
        await self._refuse(forward.incoming, Refusal("unavailable", "no_group", message, RETRY_STARTING_S))

    async def fail_request(self, sender: Sender, error: RyzError, reason: str) -> None:
        """Send the caller the end of a request that goes no further."""
        self._metrics.refused(error.code, reason)
        if not sender.reply_to:
            log.debug("no subject to answer on", request_id=sender.request_id, error=error.message)
            return
        frame = Failed(
            request_id=sender.request_id,
            attempt=sender.attempt,
            code=error.code,
            message=error.message,
            data=error.data,
        )
        try:
            await self._bus.publish(sender.reply_to, encode(FrameBatch(frames=[frame])))
        except RyzError as problem:
            # callers name the subject, and could fill the log with one line for each
            self._repeated.warning(
                "answer not sent", subject=INBOX, request_id=sender.request_id, problem=problem.message
            )
            self._metrics.event("answer_not_sent")

    async def _refuse(self, incoming: Incoming, refusal: Refusal) -> None:
        error = refusal.error(random.uniform(1.0 - _JITTER, 1.0 + _JITTER))
        await self.fail_request(_sender(incoming), error, refusal.reason)

    def _decide(self, incoming: Incoming, facts: RequestFacts, now: float) -> tuple[FleetView, Decision]:
        """The decision, and the view it was made on; empty for a copy, which needs none."""
        duplicates, request_id, attempt = self._state.duplicates, incoming.request_id, incoming.attempt
        tenant = incoming.asker.tenant
        earlier = duplicates.get((tenant, request_id, attempt), now)
        if earlier is not None and self._fleet.is_ready(earlier, now):
            return FleetView(facts.model, ()), Assignment(earlier, "duplicate")
        # a group that gave the request back may still count as ready: its last heartbeat was sent before
        avoid = duplicates.get((tenant, request_id, attempt - 1), now) if attempt else None
        avoid = avoid or incoming.lost_group
        needs = partial(guest_needs, incoming.data, adapter=bool(facts.adapter))
        view = self._fleet.view(facts.model, now, avoid, facts.weights, facts.adapter, needs=needs)
        spent = self._state.credits.spent_at(incoming.party, view.names, now)
        if spent:
            facts = replace(facts, spent=spent)
        pinned = self._state.pins.group_of(tenant, incoming.session_id)
        decision = choose(facts, view, now, policy=self._policy, pinned=pinned)
        if (
            isinstance(decision, Refusal)
            and decision.code == "overloaded"
            and self._state.contests.allows(incoming.party, facts.slots, now, incoming.weight)
        ):
            decision = at_a_full_group(facts, view, "contested_full", pinned)
        return view, decision

    def _send(
        self,
        incoming: Incoming,
        meant: Meant,
        chosen: Assignment,
        *,
        now: float,
        count: int,
        tokens: tuple[int, int],
    ) -> Awaitable[None] | None:
        """Send the request and remember it, or send the caller an error.

        Args:
            meant: With what is known of the session.
            now: Monotonic seconds.
            count: How many groups it was offered to.
            tokens: Of its prompt that the group computes, and of its answer.
        """
        state, facts = self._state, meant.facts
        route = Route(
            group=chosen.group,
            reason=chosen.reason,
            preferred_group=chosen.preferred_group,
            last_group=facts.last_group,
            router_id=self._router_id,
        )
        work = Work(
            request=incoming.data,
            route=route,
            reply_to=incoming.reply_to,
            instance_id=self._fleet.instance_of(chosen.group),
            outside=incoming.outside,
            adapter=meant.adapter,
        )
        data, key = encode(work), incoming.key
        self._sent += 1
        subject, reply = _work_subject(chosen.group), f"{self.inbox}.{self._sent}.{key}"
        headers = incoming.headers
        if incoming.deadline is not None:
            headers = {**headers, subjects.HEADER_TIMEOUT: str(max(1, int((incoming.deadline - now) * 1000)))}
        # remembered before it is sent: the broker may report at once that nothing listens there
        forward = Forward(incoming, chosen.group, count, self._sent)
        state.forwards.put(key, forward, now, len(incoming.data))
        try:
            sent = self._bus.publish_now(subject, data, reply=reply, headers=headers)
        except (RequestTooLarge, Unavailable) as error:
            return self._not_sent(incoming, error, len(data), now)
        tenant = incoming.asker.tenant
        state.duplicates.put((tenant, incoming.request_id, incoming.attempt), chosen.group, now)
        state.sessions.note_sent(facts, incoming.asker, chosen.group, now)
        state.balance.add(chosen.group, now)
        state.contests.served(incoming.party)
        state.credits.charge(incoming.party, chosen.group, tokens, now)
        state.models.demand.served(facts.model, (tenant, incoming.request_id))
        self._fleet.count_sent(chosen.group, tokens[0], now, tokens[1])
        return None if sent else self._send_slowly(incoming, work, reply, headers, now)

    async def _send_slowly(
        self, incoming: Incoming, work: Work, reply: str, headers: Mapping[str, str], now: float
    ) -> None:
        """Send the request to a broker that takes little at the moment."""
        subject, data = subjects.work(work.route.group), encode(work)
        try:
            await self._bus.publish(subject, data, reply=reply, headers=headers)
        except (RequestTooLarge, Unavailable) as error:  # counted as sent until the next heartbeat
            failure = error
        else:
            return
        await self._not_sent(incoming, failure, len(data), now)

    async def _not_sent(
        self, incoming: Incoming, error: RequestTooLarge | Unavailable, size: int, now: float
    ) -> None:
        self._state.forwards.pop(incoming.key, now)
        if isinstance(error, RequestTooLarge):
            await self.fail_request(_sender(incoming), self._too_large(incoming, size), "too_large")
        else:
            await self.fail_request(_sender(incoming), error, "broker")

    def _too_large(self, incoming: Incoming, size: int) -> RequestTooLarge:
        limit, own = self._bus.max_payload, len(incoming.data)
        return RequestTooLarge(
            f"the request has {own} bytes and {size} with its route, the broker takes {limit}; shorten it by "
            f"at least {max(1, size - limit)} bytes",
            size=own,
            limit=limit - (size - own),
        )


def _wish_of(incoming: Incoming) -> RequestKey:
    return incoming.asker.tenant, incoming.request_id


def _sender(incoming: Incoming) -> Sender:
    return Sender(incoming.request_id, incoming.attempt, incoming.reply_to)
