"""Draws a group's collectives: a thread for each rank, one that names the slowest rank of each step. Pure."""

from collections.abc import Sequence

import numpy as np

from cli.profile.chrome_events import EventList, Track
from cli.profile.collective_timeline import CollectiveTimeline

_SLOWEST = 1  # its thread; those of ranks follow


def add_collectives(
    events: EventList, group: str, timeline: CollectiveTimeline, ops: Sequence[tuple[str, str, int]], pid: int
) -> None:
    """Adds the process of a group's collectives.

    Args:
        ops: Name, kind and layer of the first rank's ops.
        pid: The number of the process.
    """
    events.name_process(pid, f"{group} collectives by rank")
    _add_slowest(events, timeline, Track(pid, _SLOWEST))
    last = timeline.begins.argmax(axis=0).tolist()
    steps, indices, complete = timeline.steps.tolist(), timeline.ops.tolist(), timeline.complete
    for row, rank in enumerate(timeline.ranks):
        track = Track(pid, _SLOWEST + 1 + row)
        events.name_thread(track, f"rank {rank}")
        times = zip(
            timeline.begins[row].tolist(), complete[row].tolist(), timeline.ends[row].tolist(), strict=True
        )
        for at, (begin_ns, complete_ns, end_ns) in enumerate(times):
            name, _, layer = ops[indices[at]]
            data = {"step": steps[at], "op": name, "layer": layer}
            if complete_ns > begin_ns:
                waits = f"waits for rank {timeline.ranks[last[at]]}"
                events.add_span(track, waits, "wait", begin_ns, complete_ns, **data)
            if end_ns > complete_ns:
                events.add_span(track, "exchange", "exchange", complete_ns, end_ns, **data)


def _add_slowest(events: EventList, timeline: CollectiveTimeline, track: Track) -> None:
    events.name_thread(track, "slowest rank of each step")
    ids, waited = timeline.waited_for()
    firsts = np.searchsorted(timeline.steps, ids)
    # no rank enters the next step before all have entered the last collective of this one
    begins = np.minimum.reduceat(timeline.begins.min(axis=0), firsts).tolist()
    ends = np.maximum.reduceat(timeline.begins.max(axis=0), firsts).tolist()
    before_ns = 0
    for step, row, begin_ns, end_ns in zip(ids.tolist(), waited.tolist(), begins, ends, strict=True):
        begin_ns = max(before_ns, begin_ns)  # noqa: PLW2901 (clocks of other hosts are known within a bound)
        before_ns = max(begin_ns, end_ns)
        slowest = timeline.ranks[row.index(max(row))]
        waits = {
            f"waited for rank {rank}, us": ns / 1000 for rank, ns in zip(timeline.ranks, row, strict=True)
        }
        events.add_span(track, f"rank {slowest}", "slowest", begin_ns, before_ns, step=step, **waits)
