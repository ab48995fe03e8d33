"""Turns a policy's answers, and the services' metrics before and after, into one row of the report. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lib.measuring import percentiles
from benchmarks.lib.service_metrics import ServiceMetrics, between, quantile
from benchmarks.sessions.client import StreamedTurn
from services.router.domain.groups.balance import imbalance


@dataclass(slots=True)
class MeasuredTurns:
    """The turns that began in the measured time, and the services' metrics at its two ends, by name.

    Attributes:
        full: Turns that were sent a second time, since the session's conversation had no room for them.
    """

    seconds: float
    groups: Sequence[str]
    answers: list[StreamedTurn] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    full: int = 0
    before: Mapping[str, ServiceMetrics] = field(default_factory=dict)
    after: Mapping[str, ServiceMetrics] = field(default_factory=dict)


def row(policy: str, measured: MeasuredTurns) -> dict[str, Any]:
    """Return the figures of one policy.

    `imbalance_*` is the excess of the busiest group over its share: of tokens that it computed, of seconds
    that its steps took (on a machine that all groups share), of turns. `hit_rate` and `fetched_rate` are the
    shares of prompt tokens whose KV was in the group's memory and came from the store. `busiest_session` is
    that session's share of the turns. `full` counts the turns that their conversation had no room for, which
    began a new one.
    """
    answers, even = measured.answers, dict.fromkeys(measured.groups, 1.0)
    computed, turns = dict.fromkeys(measured.groups, 0), Counter[str]()
    for answer in answers:
        computed[answer.group] = computed.get(answer.group, 0) + answer.computed
        turns[answer.group] += 1
    prompt = sum(answer.prompt for answer in answers) or 1
    fetched = sum(answer.fetched for answer in answers)
    sessions = Counter(answer.session for answer in answers)
    found = {
        "policy": policy,
        "imbalance_tokens": round(imbalance(computed, even), 4),
        "imbalance_busy": round(imbalance(_busy_s(measured), even), 4),
        "imbalance_requests": round(imbalance(turns, even), 4),
        "hit_rate": round((sum(answer.cached for answer in answers) - fetched) / prompt, 4),
        "fetched_rate": round(fetched / prompt, 4),
        **percentiles([answer.first_s for answer in answers], "ttft", digits=1),
        "turns": len(answers),
        "turns_per_s": round(len(answers) / measured.seconds, 1),
        "busiest_session": round(max(sessions.values(), default=0) / max(1, len(answers)), 4),
        **_decisions(measured),
        "computed_tokens": computed,
        "reasons": _shares(Counter(answer.reason for answer in answers)),
        "full": measured.full,
        "errors": measured.problems.total(),
    }
    return found | {"error_kinds": dict(measured.problems.most_common(5))} if measured.problems else found


def _busy_s(measured: MeasuredTurns) -> dict[str, float]:
    name = "ryz_worker_step_seconds_sum"
    return {
        group: measured.after[f"worker-{group}"].value(name) - measured.before[f"worker-{group}"].value(name)
        for group in measured.groups
    }


def _decisions(measured: MeasuredTurns) -> dict[str, float]:
    before, after = (
        metrics["router"].buckets("ryz_router_decision_seconds")
        for metrics in (measured.before, measured.after)
    )
    seconds = between(before, after)
    return {
        f"decision_p{percent}_us": round(quantile(seconds, percent / 100) * 1e6, 1) for percent in (50, 99)
    }


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total() or 1
    return {name: round(count / total, 4) for name, count in counts.most_common()}
