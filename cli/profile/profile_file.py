"""Makes one file in Chrome's trace format of the recordings of all groups, on one clock. Pure.

A process for each leader and each rank. A rank's first thread shows steps, their phases and its ops, one
inside the other; its other threads show their share of each op, and the gaps are waiting for each other.
"""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from cli.profile.chrome_events import EventList, TimedEvent, Track
from cli.profile.collective_events import add_collectives
from cli.profile.collective_timeline import collective_timeline
from cli.profile.rank_rows import RankRows, clock_of_collectives, rank_rows
from services.worker.leader.step_log import LoggedStep
from services.worker.rank_protocol.step_times import KINDS
from shared.messages import GroupRecording
from shared.telemetry.clock_estimate import ClockOffset

_PHASES = ("kv copies", "forward", "masks", "sampling", "broadcast tokens")
_LOOP, _IN_FLIGHT, _LATE, _OUT, _IN = 1, 2, 4, 10, 50  # threads of a leader; steps in flight take two
_STEPS, _MOVES = 1, 1100  # threads of a rank; its further threads are between them
_COLLECTIVES = 99  # the number of a group's process with its collectives, behind those of ranks
_APART = 100  # numbers of processes between two groups


@dataclass(frozen=True, slots=True)
class TimedRecording:
    """A recording, and how far its leader's clock is ahead of ours."""

    recording: GroupRecording
    clock: ClockOffset


@dataclass(slots=True)
class ProfileFile:
    """The content of the file.

    Attributes:
        clocks: What is known of the clocks, for the file and for people.
        notes: What is missing in the profile, in sentences.
        missing: Ranks that recorded nothing.
        slow: Which rank the others wait for, in a sentence for each group of several ranks.
    """

    events: list[dict[str, Any]]
    clocks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The whole file."""
        about = {"clocks": self.clocks, "notes": self.notes, "collectives": self.slow}
        about["written by"] = "ryz profile"
        return {"traceEvents": self.events, "displayTimeUnit": "ms", "otherData": about}


def profile_file(recordings: list[TimedRecording]) -> ProfileFile:
    """Returns the file of some groups; the begin of the first recording is its time 0."""
    zero_ns = min(one.recording.began_ns - one.clock.offset_ns for one in recordings)
    found = ProfileFile([])
    for index, one in enumerate(recordings):
        # every time of a group is on its leader's clock, so one shift moves the group to our clock
        events = EventList(zero_ns + one.clock.offset_ns)
        recording, first = one.recording, index * _APART + 1
        _add_leader(events, recording, first)
        ranks = []
        for rank in recording.ranks:
            if rank.problem or not rank.trace:
                found.missing.append(
                    f"Group {recording.group}: {rank.problem or f'rank {rank.rank} recorded nothing'}."
                )
                continue
            ranks.append(rank_rows(rank))
            _add_rank(events, recording, ranks[-1], first + 1 + rank.rank)
        _add_steps(events, recording, ranks, first)
        timeline = collective_timeline(ranks)
        if timeline is not None:
            add_collectives(events, recording.group, timeline, ranks[0].ops, first + _COLLECTIVES)
            found.slow.append(f"group {recording.group}: {timeline.verdict()}")
        found.events += events.events
        found.clocks += _clocks(one, ranks)
        if recording.problem:
            found.notes.append(f"group {recording.group}: {recording.problem}")
        left_out = recording.left_out + sum(rows.left_out for rows in ranks)
        if left_out:
            found.notes.append(f"group {recording.group}: {left_out} events beyond the bounds are missing")
    return found


def _add_leader(events: EventList, recording: GroupRecording, pid: int) -> None:
    events.name_process(pid, f"{recording.group} leader (pid {recording.pid}, {recording.model})")
    for tid, name in (
        (_LOOP, "engine loop"), (_IN_FLIGHT, "steps in flight"), (_IN_FLIGHT + 1, "steps in flight, ahead"),
        (_LATE, "event loop late"),
    ):  # fmt: skip
        events.name_thread(Track(pid, tid), name)
    for outgoing, tid, name in ((True, _OUT, "messages out"), (False, _IN, "messages in")):
        spans = [
            TimedEvent(one.subject, one.begin_ns, one.begin_ns + one.length_ns, {"bytes": one.num_bytes})
            for one in recording.messages
            if one.outgoing == outgoing
        ]
        events.add_lanes(Track(pid, tid), name, "bus", spans)
    for due_ns, turned_ns in np.frombuffer(recording.late_turns, np.int64).reshape(-1, 2).tolist():
        events.add_span(Track(pid, _LATE), "late", "event loop", due_ns, turned_ns)


def _add_steps(events: EventList, recording: GroupRecording, ranks: list[RankRows], pid: int) -> None:
    begins = {
        (rows.rank.rank, int(step_id)): int(begin_ns)
        for rows in ranks
        for step_id, begin_ns in rows.phases[:, :2]
    }
    steps = np.frombuffer(recording.steps, np.int64).reshape(-1, len(LoggedStep._fields)).tolist()
    for index, step in enumerate(LoggedStep(*row) for row in steps):
        name = f"step {step.step_id}"
        tokens = {"decode tokens": step.decode_tokens, "prefill tokens": step.prefill_tokens}
        data, loop = {"step": step.step_id, **tokens, "sequences": step.sequences}, Track(pid, _LOOP)
        events.add_span(loop, "plan", "leader", step.planned_ns, step.ready_ns, **data)
        events.add_span(loop, "submit", "leader", step.ready_ns, step.submitted_ns)
        if step.booked_ns:
            events.add_span(loop, "book and publish", "leader", step.result_ns, step.booked_ns)
        # at most two steps are in flight, so every other one has the same thread to itself
        tid = _IN_FLIGHT + index % 2
        events.add_span(Track(pid, tid), name, "step", step.ready_ns, step.result_ns, **data)
        events.add_counts(pid, "tokens of a step", step.submitted_ns, **tokens)
        for rows in ranks:
            begin_ns = begins.get((rows.rank.rank, step.step_id))
            if begin_ns is not None:
                number = pid * 10**6 + index * 100 + rows.rank.rank
                end = Track(pid + 1 + rows.rank.rank, _STEPS), begin_ns
                events.add_arrow(number, (loop, step.ready_ns), end)


def _add_rank(events: EventList, recording: GroupRecording, rows: RankRows, pid: int) -> None:
    where = f" on {rows.rank.host}" if rows.rank.host else ""
    events.name_process(pid, f"{recording.group} rank {rows.rank.rank} (pid {rows.rank.pid}){where}")
    events.name_thread(Track(pid, _STEPS), "steps and ops, thread 0")
    kinds = _kinds_of_steps(recording, rows.rank.rank)
    for step_id, begin_ns, *ends in rows.phases.tolist():
        spent = kinds.get(step_id, {})
        events.add_span(Track(pid, _STEPS), f"step {step_id}", "step", begin_ns, ends[-1], **spent)
        since_ns = begin_ns
        for name, end_ns in zip(_PHASES, ends, strict=True):
            if end_ns > since_ns:
                events.add_span(Track(pid, _STEPS), name, "phase", since_ns, end_ns)
            since_ns = end_ns
    for thread in sorted({int(one) for one in rows.spans[:, 0]} - {0}):
        events.name_thread(Track(pid, _STEPS + thread), f"thread {thread}")
    for thread, begin_ns, end_ns, index in rows.spans.tolist():
        name, kind, layer = rows.ops[index]
        data = {"layer": layer} if layer >= 0 else {}
        events.add_span(Track(pid, _STEPS + thread), name, kind, begin_ns, end_ns, **data)
    moves = [
        TimedEvent(one.name, one.end_ns - one.length_ns, one.end_ns, {"blocks": one.blocks})
        for one in rows.moves
    ]
    events.add_lanes(Track(pid, _MOVES), "KV store", "kv store", moves)


def _kinds_of_steps(recording: GroupRecording, rank: int) -> dict[int, dict[str, float]]:
    """Microseconds by kind of each step of a rank."""
    rows = np.frombuffer(recording.rank_steps, np.int64).reshape(-1, 6 + len(KINDS)).tolist()
    return {
        row[0]: {f"{kind} us": spent / 1000 for kind, spent in zip(KINDS, row[4:], strict=False)}
        for row in rows
        if row[1] == rank
    }


def _clocks(timed: TimedRecording, ranks: list[RankRows]) -> list[dict[str, Any]]:
    group = timed.recording.group
    found: list[dict[str, Any]] = [_shown(f"{group} leader, to this host", "ping", timed.clock)]
    for one in timed.recording.ranks:
        if one.offset_ns is not None:
            clock = ClockOffset(one.offset_ns, one.error_ns)
            found.append(_shown(f"{group} rank {one.rank}, to its leader", "ping", clock))
    for left, right in combinations(ranks, 2):
        between = clock_of_collectives(left, right)
        if between is not None:
            clock, count = between
            name = f"{group} rank {right.rank.rank}, to rank {left.rank.rank}"
            found.append(_shown(name, f"{count} collectives", clock))
    return found


def _shown(of: str, by: str, clock: ClockOffset) -> dict[str, Any]:
    return {"of": of, "by": by, "ahead_us": clock.offset_ns / 1000, "error_us": clock.error_ns / 1000}
