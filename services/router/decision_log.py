"""Records each decision and its alternatives in metrics, log and trace."""

import logging
import time
from collections.abc import Mapping

import structlog

from services.router.domain.decision import Assignment, FleetView, RequestFacts
from services.router.domain.policies.costs import STAYS, Costs, Move
from services.router.incoming import Incoming
from services.router.metrics import RouterMetrics
from shared.telemetry.request_ids import TRACE_PARENT
from shared.telemetry.spans.facts import Attribute, SpanFacts, SpanSink
from shared.telemetry.spans.trace_ids import TraceParent

log = structlog.get_logger(__name__)


class DecisionLog:
    """Records where each request went and why, and the costs of a session that changed its group."""

    def __init__(self, metrics: RouterMetrics, costs: Costs, spans: SpanSink | None) -> None:
        self._metrics = metrics
        self._costs = costs
        self._spans = spans

    def record_assignment(
        self, incoming: Incoming, facts: RequestFacts, view: FleetView, chosen: Assignment, seconds: float
    ) -> Move:
        """Record one assignment.

        Args:
            facts: What the policy knew of it.
            view: The groups; empty if none was examined, as for a copy.
            seconds: The time that the decision took.

        Returns:
            What the group has to do for the session's KV.
        """
        self._metrics.decided(chosen.reason, chosen.group, seconds)
        group = view.find(chosen.group)
        before = facts.last_group or chosen.preferred_group
        parent = self._recorded(incoming)
        if group is None or (chosen.group == before and parent is None):
            return STAYS
        last = view.find(before)
        move = self._costs.move(facts, group, last)
        moved = before and before != chosen.group
        if moved:
            self._metrics.moved(move.seconds)
        # under load there may be as many moves as turns, and metrics count them: only losses are logged
        level = logging.INFO if chosen.reason == "resumed" else logging.DEBUG
        logs = moved and log.is_enabled_for(level)
        if not logs and parent is None:
            return move
        figures: dict[str, str | float | int] = {
            "group": chosen.group,
            "reason": chosen.reason,
            "preferred_group": chosen.preferred_group,
            "last_group": facts.last_group,
            "session_tokens": facts.session_tokens,
            "cost_s": round(self._costs.total_s(facts, group, last), 4),
            "move_s": round(move.seconds, 4),
        }
        if last is not None:
            figures["stay_cost_s"] = round(self._costs.total_s(facts, last, last), 4)
        if logs:
            log.log(level, "session moved", request_id=incoming.request_id, **figures)
        if parent is not None:
            self._record_span(parent, figures, seconds)
        return move

    def record_refusal(self, incoming: Incoming, reason: str, seconds: float) -> None:
        """Records that no group was chosen."""
        parent = self._recorded(incoming)
        if parent is not None:
            self._record_span(parent, {"reason": reason}, seconds, error=f"refused: {reason}")

    def _recorded(self, incoming: Incoming) -> TraceParent | None:
        """The span that the request comes from, if the trace is recorded here."""
        if self._spans is None:
            return None
        parent = TraceParent.read(incoming.headers.get(TRACE_PARENT, ""))
        return parent if parent is not None and parent.sampled else None

    def _record_span(
        self, parent: TraceParent, figures: Mapping[str, str | float | int], seconds: float, error: str = ""
    ) -> None:
        assert self._spans is not None
        ended_ns = time.monotonic_ns()
        attributes: dict[str, Attribute] = {f"ryz.route.{name}": value for name, value in figures.items()}
        span = SpanFacts(
            "choice of a group",
            parent.trace_id,
            parent.span_id,
            ended_ns - round(seconds * 1e9),
            ended_ns,
            attributes,
            error=error,
        )
        self._spans.submit(lambda: [span])
