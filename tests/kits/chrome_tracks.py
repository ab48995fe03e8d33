"""Reads the threads of a file in Chrome's trace format."""

from collections import defaultdict
from typing import Any


def nested(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Name and depth of the spans of each thread, in their order; fails where two overlap."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for track, spans in tracks.items():
        spans.sort(key=lambda one: (one[0], -one[1]))
        open_until: list[float] = []
        found[track] = []
        for begin, end, event in spans:
            assert event["dur"] >= 0
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (track, event)
            found[track].append((event["name"], len(open_until)))
            open_until.append(end)
    return found
