"""Turns the readings of streams under faults into figures. Pure."""

from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Literal

from benchmarks.failover.streams import Readers, Reading
from benchmarks.lib.measuring import spread
from shared.client.generation.attempts import Interruption

Victim = Literal["rank", "leader"]
_PARTS = ("detect", "republish", "first_token")
_PauseParts = dict[str, list[float]]  # parts of pauses of streams whose group was hit, in milliseconds
# A pause counts for a fault if it comes within this time after it and before the next fault. A frozen rank is
# detected after two seconds.
_WINDOW_S = 6.0


@dataclass(slots=True)
class InjectedFault:
    """One fault.

    Attributes:
        victim: What was killed or frozen.
        at: When, by `time.monotonic()`.
        back_s: Seconds until the group was ready again.
        fetch_s: Mean seconds of one fetch of KV by the other group meanwhile; 0 without one.
    """

    victim: Victim
    group: str
    at: float
    back_s: float = 0.0
    fetch_s: float = 0.0


def figures(faults: list[InjectedFault], readers: Readers, calm: list[Reading]) -> dict[str, Any]:
    """Return the report's figures.

    `pause_ms` is of streams that had begun and whose group was hit, `others_ms` of other streams that had
    begun, at the same time, `calm_ms` between frames without faults. `breakdown_ms` has the time from the
    fault until the caller knew of the loss (detect), from there until another group had the request
    (republish), and from there until tokens came (first_token), of which fetch is one fetch on average.
    `unbegun_ms` is how long after the fault the first frame came of requests whose group was hit before it.
    `uncounted` are losses without a pause, mostly of streams that began after the fault and went to the group
    before the loss was known.
    """
    pauses: dict[Victim, list[float]] = {"rank": [], "leader": []}
    others, unbegun, rows = list[float](), list[float](), []
    every: _PauseParts = {name: [] for name in _PARTS}
    for fault, following in zip_longest(faults, faults[1:]):
        until, hit = fault.at + _WINDOW_S, list[float]()
        parts: _PauseParts = {name: [] for name in _PARTS}
        if following is not None:
            until = min(until, following.at)
        for reading in readers.readings:
            if reading.began > fault.at or reading.ended < fault.at:
                continue
            mine = next((one for one in reading.interruptions if fault.at <= one.lost_at < until), None)
            first_at = reading.arrivals[0] if reading.arrivals else reading.ended
            if first_at > fault.at:
                unbegun += [1000 * (first_at - fault.at)] if mine is not None else []
                continue
            pause = 1000 * reading.pause_around(fault.at, until)
            if mine is None:
                others.append(pause)
                continue
            pauses[fault.victim].append(pause)
            hit.append(pause)
            _add_pause(parts, fault.at, mine)
        for name, values in parts.items():
            every[name] += values
        rows.append(_row(fault, hit, parts))
    gaps = [1000 * (later - earlier) for one in calm for earlier, later in pairwise(one.arrivals)]
    hits = pauses["rank"] + pauses["leader"]
    losses = sum(len(reading.interruptions) for reading in readers.readings)
    return {
        "kills": len(faults),
        "killed": {victim: sum(fault.victim == victim for fault in faults) for victim in pauses},
        "streams": len(readers.readings),
        "interrupted": len(hits) + len(unbegun),
        "uncounted": losses - len(hits) - len(unbegun),
        "unequal": readers.unequal,
        "lost": len(readers.failures),
        "hung": sum(failure.startswith("deadline") for failure in readers.failures),
        "failures": sorted(set(readers.failures))[:10],
        "pause_ms": spread(hits),
        "pause_by_victim_ms": {victim: spread(values) for victim, values in pauses.items()},
        "unbegun_ms": spread(unbegun),
        "others_ms": spread(others),
        "calm_ms": spread(gaps),
        "breakdown_ms": {name: spread(values) for name, values in every.items()}
        | {"fetch": spread([1000 * fault.fetch_s for fault in faults if fault.fetch_s])},
        "back_s": spread([fault.back_s for fault in faults]),
        "faults": rows,
    }


def _add_pause(parts: _PauseParts, fault_at: float, mine: Interruption) -> None:
    parts["detect"].append(1000 * (mine.lost_at - fault_at))
    if mine.accepted_at:
        parts["republish"].append(1000 * (mine.accepted_at - mine.lost_at))
    if mine.resumed_at:
        parts["first_token"].append(1000 * (mine.resumed_at - mine.accepted_at))


def _row(fault: InjectedFault, pauses: list[float], parts: _PauseParts) -> dict[str, Any]:
    """Return the figures of one fault, to see what the long pauses have in common."""
    return {
        "victim": fault.victim,
        "group": fault.group,
        "streams": len(pauses),
        "pause_ms": spread(pauses),
        **{f"{part}_ms": spread(values) for part, values in parts.items()},
        "fetch_ms": round(1000 * fault.fetch_s, 3),
        "back_s": round(fault.back_s, 3),
    }
