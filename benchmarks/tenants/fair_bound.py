"""The bound of DLPM on two tenants that flood a group, and the largest gap that was seen. Pure.

Of two parties that want more during a whole interval, none gets more than `2 Q + U_f + U_g` weighted tokens
beyond the other, each divided by its weight (`services/worker/domain/scheduling/fairness/deficits.py`; arXiv
2501.14312). `Q` is the quantum. `U` is what running sequences of a party without credit may still be given:
the prompts of one step, and the tokens that its running sequences have left to decode.

A client sees the tokens of a prompt with the first token of its answer. So up to one prompt of each party may
seem to be of the other side of an interval's edge, and `P_f + P_g` is added.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WINDOW_S = 10.0
WAITED = 0.9


class Served(NamedTuple):
    """Tokens that a client got at one moment.

    Attributes:
        when: Seconds of one clock.
        tokens: Those of a prompt that were computed, or decoded ones.
        decoded: Whether they were decoded.
    """

    when: float
    tokens: int
    decoded: bool = True


@dataclass(frozen=True, slots=True)
class GroupRules:
    """By what a group shares.

    Attributes:
        quantum: Tokens of a prompt that a party of weight 1 gets in a round; also the budget of a step.
        decode_tokens: What a decoded token costs, in tokens of a prompt.
        max_running: Sequences that run at a time.
    """

    quantum: float
    decode_tokens: float
    max_running: int


@dataclass(frozen=True, slots=True)
class Rival:
    """A party that always wants more.

    Attributes:
        weight: The weight of the party.
        streams: Requests that it has under way.
        prompt: Tokens of its longest prompt.
        answer: Tokens of an answer.
        served: What it got, in the order of time.
    """

    weight: float
    streams: int
    prompt: int
    answer: int
    served: Sequence[Served]


def bound(first: Rival, second: Rival, rules: GroupRules) -> float:
    """Return by how many weighted tokens, over the weight, two parties may differ in any interval."""
    return sum(
        rules.quantum
        + (
            rules.quantum
            + min(one.streams, rules.max_running) * rules.decode_tokens * one.answer
            + one.prompt
        )
        / one.weight
        for one in (first, second)
    )


def largest_gap(
    first: Rival, second: Rival, rules: GroupRules, *, begin: float, end: float, window_s: float = WINDOW_S
) -> float:
    """Return the largest difference, in weighted tokens over the weight, in any interval up to a window.

    Args:
        first: A party.
        second: The other one.
        rules: What a decoded token counts.
        begin: When the time that is looked at begins, in seconds of `Served.when`.
        end: When it ends.
        window_s: The longest interval.
    """
    events: list[tuple[float, float]] = []
    for one, sign in ((first, 1.0), (second, -1.0)):
        for when, tokens, decoded in one.served:
            if begin <= when < end:
                cost = tokens * (rules.decode_tokens if decoded else 1.0)
                events.append((when, sign * cost / one.weight))
    events.sort()
    return max(_largest_rise(events, window_s), _largest_rise([(at, -cost) for at, cost in events], window_s))


def bound_report(
    rivals: Mapping[str, Rival], rules: GroupRules, *, begin: float, end: float, waited: float
) -> dict[str, float | bool | None]:
    """Return the gap, the bound and whether it held, of two parties in one run of the phase.

    Args:
        rivals: The parties.
        rules: By what the group shares.
        begin: When the time that is looked at begins, in seconds of `Served.when`.
        end: When it ends.
        waited: In which part of the time both had requests that waited. Below `WAITED` one of them did not
            always want more, and `holds` is None: the bound says nothing of such parties.
    """
    first, second = rivals.values()
    gap, most = largest_gap(first, second, rules, begin=begin, end=end), bound(first, second, rules)
    return {
        "gap_tokens": round(gap, 1),
        "bound_tokens": round(most, 1),
        "both_waited": round(waited, 3),
        "holds": gap <= most if waited >= WAITED else None,
        "quantum": rules.quantum,
        "decode_tokens": rules.decode_tokens,
        "max_running": rules.max_running,
    }


def _largest_rise(events: list[tuple[float, float]], window_s: float) -> float:
    """Return by how much a running sum rises at most within a window."""
    total, largest = 0.0, 0.0
    before = deque[tuple[float, float]]()  # sums just before an event, rising: the first is the least
    for when, cost in events:
        while before and before[-1][1] >= total:
            before.pop()
        before.append((when, total))
        while before[0][0] < when - window_s:
            before.popleft()
        total += cost
        largest = max(largest, total - before[0][1])
    return largest
