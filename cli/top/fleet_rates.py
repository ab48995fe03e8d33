"""What the fleet did between two answers to `ryz status`: rates, quantiles, the ranks' times. Pure.

Services count since their start; a difference of counts over a time is a rate. A leader that has started
again in between has no rates until the next answer.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.groups.silent_groups import SilentGroup, silent_groups
from cli.status.query import StatusReport

MAX_NEWS = 100
_UNEVEN = 0.1  # of the time of steps: by so much the waits of two ranks of a group must differ to be shown


@dataclass(frozen=True, slots=True)
class RankRates:
    """One rank.

    Attributes:
        steps_per_s: Steps; None: not known yet.
        step_ms: Mean duration of a step; None: there was none.
        shares: Parts of the time by kind, idle included, which sum to 1; empty: not known.
        is_slow: The others of its group wait for it in collectives.
        running_step_s: How long the step that it computes now has taken; 0: it computes none.
    """

    group: str
    rank: int
    state: str
    memory_bytes: int
    steps_per_s: float | None = None
    step_ms: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    is_slow: bool = False
    running_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupRates:
    """One group.

    Attributes:
        kv_usage: Share of the KV blocks in use.
        tokens_per_s: Tokens computed, prefill and decode; None: not known yet.
        requests_per_s: Answers that began; None: not known yet.
        first_token_ms: Median and 99th percentile since the last answer; None: there was none.
        inter_token_ms: The same, between two tokens of a request.
        drafts_right: Share of the draft tokens since the last answer; None: there were none.
        trouble: What is wrong, or empty.
    """

    group: str
    state: str
    model: str = ""
    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    kv_usage: float = 0.0
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    first_token_ms: tuple[float, float] | None = None
    inter_token_ms: tuple[float, float] | None = None
    drafts_right: float | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FleetRates:
    """The fleet at one moment.

    Attributes:
        problem: Why nothing is known; empty: something is.
        news: What changed, the newest last: time of day in seconds, and a sentence.
    """

    at_s: float
    problem: str
    groups: list[GroupRates]
    ranks: list[RankRates]
    services: dict[str, int]
    sessions: int | None
    flowing: int
    news: list[tuple[float, str]]


class FleetComparison:
    """Compares each answer with the one before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Mapping[str, Any]]] = {}  # time and detail by leader
        self._states: dict[str, str] = {}
        self._news: deque[tuple[float, str]] = deque(maxlen=MAX_NEWS)

    def take(self, report: StatusReport, now_s: float, wall_s: float) -> FleetRates:
        """Returns the fleet now.

        Args:
            now_s: When they came, in monotonic seconds.
            wall_s: The same, in seconds since 1970.
        """
        groups: list[GroupRates] = []
        ranks: list[RankRates] = []
        leaders: dict[str, tuple[float, Mapping[str, Any]]] = {}
        for one in report.of_kind("worker"):
            before = self._before.get(one.instance_id)
            leaders[one.instance_id] = now_s, one.detail
            groups.append(_group(one.detail, one.state, before, now_s))
            ranks += _ranks(one.detail, before, now_s)
        groups += [_silent(one) for one in silent_groups(report.services)]
        groups.sort(key=lambda one: one.group)
        ranks.sort(key=lambda one: (one.group, one.rank))
        self._before = leaders
        self._note_changes(groups, wall_s)
        kinds: dict[str, int] = {}
        for one in report.services:
            kinds[one.service] = kinds.get(one.service, 0) + 1
        flowing = sum(int(one.detail.get("running", 0)) for one in report.of_kind("gateway"))
        return FleetRates(
            wall_s, report.problem, groups, ranks, kinds, report.sessions(), flowing, list(self._news)
        )

    def _note_changes(self, groups: Sequence[GroupRates], wall_s: float) -> None:
        for one in groups:
            before = self._states.get(one.group)
            if before is not None and before != one.state:
                why = f": {one.trouble}" if one.trouble else ""
                self._news.append((wall_s, f"{one.group} is {one.state}, was {before}{why}"))
            self._states[one.group] = one.state


def _group(
    detail: Mapping[str, Any],
    state: str,
    before: tuple[float, Mapping[str, Any]] | None,
    now_s: float,
) -> GroupRates:
    total = int(detail.get("total_blocks", 0))
    tokens_per_s = requests_per_s = first = inter = drafts_right = None
    if before is not None and now_s > before[0]:
        grown = int(detail.get("computed_tokens", 0)) - int(before[1].get("computed_tokens", 0))
        tokens_per_s = max(0, grown) / (now_s - before[0])
        begun = _new_counts(detail, before[1], "first_token_s")
        requests_per_s = None if begun is None else sum(begun) / (now_s - before[0])
        first = _quantiles(detail, before[1], "first_token_s")
        inter = _quantiles(detail, before[1], "inter_token_s")
        drafts_right = _drafts_right(detail, before[1])
    missing = ", ".join(map(str, detail.get("degraded", ())))
    return GroupRates(
        group=str(detail.get("group")),
        state=str(detail.get("state", state)),
        model=str(detail.get("model", "")),
        running=int(detail.get("running", 0)),
        waiting=int(detail.get("waiting", 0)),
        queued_tokens=int(detail.get("queued_tokens", 0)),
        kv_usage=1 - int(detail.get("free_blocks", 0)) / total if total else 0.0,
        tokens_per_s=tokens_per_s,
        requests_per_s=requests_per_s,
        first_token_ms=first,
        inter_token_ms=inter,
        drafts_right=drafts_right,
        trouble=str(detail.get("failure", "")) or (f"does without {missing}" if missing else ""),
    )


def _ranks(
    detail: Mapping[str, Any], before: tuple[float, Mapping[str, Any]] | None, now_s: float
) -> list[RankRates]:
    earlier = {row.get("rank"): row for row in before[1].get("ranks", ())} if before else {}
    passed_s = now_s - before[0] if before else 0.0
    grown = {
        row["rank"]: _grown(row, earlier[row["rank"]])
        for row in detail.get("ranks", ())
        if row.get("rank") in earlier and "seconds" in row and "seconds" in earlier[row["rank"]]
    }
    slow = _slow(grown)
    found = []
    for row in detail.get("ranks", ()):
        rank = int(row.get("rank", -1))
        steps, step_s, seconds = grown.get(rank, (0, 0.0, {}))
        spent_s = sum(seconds.values())
        found.append(
            RankRates(
                group=str(detail.get("group")),
                rank=rank,
                state=str(row.get("state", "?")),
                memory_bytes=int(row.get("memory_bytes") or 0),
                steps_per_s=steps / passed_s if seconds and passed_s > 0 else None,
                step_ms=1000 * step_s / steps if steps else None,
                shares={kind: part / spent_s for kind, part in seconds.items()} if spent_s > 0 else {},
                is_slow=rank == slow,
                running_step_s=float(row.get("running_step_s", 0.0)),
            )
        )
    return found


def _grown(row: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[int, float, dict[str, float]]:
    """Steps, their seconds, and seconds by kind since then; a step counts when it is done."""
    seconds = {
        kind: max(0.0, spent - before["seconds"].get(kind, 0.0)) for kind, spent in row["seconds"].items()
    }
    steps = int(row.get("steps_done", 0)) - int(before.get("steps_done", 0))
    return max(0, steps), max(0.0, row.get("step_s", 0.0) - before.get("step_s", 0.0)), seconds


def _slow(grown: Mapping[int, tuple[int, float, Mapping[str, float]]]) -> int | None:
    """The rank for which the others wait: the one that waits less in collectives than they do.

    Rank 0 alone samples, and the others wait for that in a collective, so it counts as one of its own.
    """
    waits = {
        rank: sum(seconds.get(kind, 0.0) for kind in ("collectives", "sampling", "masks")) / step_s
        for rank, (_, step_s, seconds) in grown.items()
        if step_s > 0
    }
    if len(waits) < 2 or max(waits.values()) - min(waits.values()) < _UNEVEN:
        return None
    return min(waits, key=lambda rank: waits[rank])


def _silent(one: SilentGroup) -> GroupRates:
    return GroupRates(group=one.group, state=one.state, model=one.model, trouble=one.story)


def _new_counts(detail: Mapping[str, Any], before: Mapping[str, Any], name: str) -> list[int] | None:
    """What a histogram has counted since then, by bucket.

    None if its buckets are others, or it began anew.
    """
    now, then = detail.get(name), before.get(name)
    if not now or not then or now["bounds"] != then["bounds"]:
        return None
    counts = [new - old for new, old in zip(now["counts"], then["counts"], strict=True)]
    return counts if min(counts, default=0) >= 0 else None


def _drafts_right(detail: Mapping[str, Any], before: Mapping[str, Any]) -> float | None:
    now, then = detail.get("speculation", {}), before.get("speculation", {})
    checked, right = (
        int(now.get(name, 0)) - int(then.get(name, 0)) for name in ("draft_tokens", "accepted_tokens")
    )
    return right / checked if checked > 0 and right >= 0 else None


def _quantiles(detail: Mapping[str, Any], before: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    counts = _new_counts(detail, before, name)
    if not counts or not sum(counts):
        return None
    bounds = detail[name]["bounds"]
    return 1000 * quantile(bounds, counts, 0.5), 1000 * quantile(bounds, counts, 0.99)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Estimates a quantile as Prometheus does: values are spread evenly over their bucket.

    Args:
        bounds: Upper bounds of all buckets but the last one.
        counts: Values in each bucket.
        share: 0.5 for the median.

    Returns:
        The value; of the last bucket its lower bound.
    """
    wanted, seen = share * sum(counts), 0
    for index, count in enumerate(counts):
        if count and seen + count >= wanted:
            if index >= len(bounds):
                break
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (wanted - seen) / count
        seen += count
    return bounds[-1]
