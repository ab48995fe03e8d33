"""Records each decision and its alternatives in metrics, log and trace."""

import logging

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from services.router.domain.decision import Assignment, FleetView, RequestFacts
from services.router.domain.policies.costs import Costs, Move
from services.router.incoming import Incoming
from services.router.metrics import RouterMetrics
from shared.telemetry.trace_context import extract

log = structlog.get_logger(__name__)


class DecisionLog:
    """Records where each request went and why, and the costs of a session that changed its group."""

    def __init__(self, metrics: RouterMetrics, costs: Costs, tracer: Tracer) -> None:
        self._metrics = metrics
        self._costs = costs
        self._tracer = None if isinstance(tracer, NoOpTracer) else tracer

    def record_assignment(
        self, incoming: Incoming, facts: RequestFacts, view: FleetView, chosen: Assignment, seconds: float
    ) -> Move:
        """Record one assignment.

        Args:
            incoming: The request.
            facts: What the policy knew of it.
            view: The groups; empty if none was looked at, as for a copy.
            chosen: The decision.
            seconds: The time that the decision took.

        Returns:
            What the group has to do for the session's KV.
        """
        self._metrics.decided(chosen.reason, chosen.group, seconds)
        group = view.find(chosen.group)
        before = facts.last_group or chosen.preferred_group
        if group is None or (chosen.group == before and self._tracer is None):
            return Move()
        place = view.find(before)
        move = self._costs.move(facts, group, place)
        told: dict[str, str | float | int] = {
            "group": chosen.group,
            "reason": chosen.reason,
            "preferred_group": chosen.preferred_group,
            "last_group": facts.last_group,
            "session_tokens": facts.session_tokens,
            "cost_s": round(self._costs.total_s(facts, group, place), 4),
            "move_s": round(move.seconds, 4),
        }
        if place is not None:
            told["stay_cost_s"] = round(self._costs.total_s(facts, place, place), 4)
        if before and before != chosen.group:
            self._metrics.moved(move.seconds)
            # under load there may be as many moves as turns, and metrics count them: only losses are logged
            level = logging.INFO if chosen.reason == "resumed" else logging.DEBUG
            log.log(level, "session moved", request_id=incoming.request_id, **told)
        if self._tracer is not None:
            attributes = {f"ryz.route.{name}": value for name, value in told.items()}
            self._tracer.start_span("route", extract(incoming.headers), attributes=attributes).end()
        return move
