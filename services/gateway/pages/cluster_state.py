"""What the live view knows of the cluster: groups, sessions, and what happened. Pure.

It is fed with messages of the bus and asked for snapshots. Everything in it has a bound; what is over a bound
drops the oldest.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from shared.messages import GroupDown, Heartbeat, SessionTurn

MAX_GROUPS = 256
MAX_SESSIONS = 4096
MAX_INCIDENTS = 64
SHOWN_SESSIONS = 60
FORGET_S = 600.0  # a lost group is shown so long
_STALE_S = 2.0  # of silence, before a group is shown as silent
_AWAY = frozenset({"recovering", "failed", "stopped", "draining"})
_REASONS = {
    "disconnected": "its connection to the broker closed",
    "silent": "its heartbeats stopped",
    "no_responders": "it answers no requests",
    "stopped": "it was stopped",
}
_CAUSES = {"ended": "its leader died", "frozen": "its leader is frozen", "hung": "its leader hangs"}


@dataclass(slots=True)
class GroupEntry:
    """A group as it was heard last.

    Attributes:
        beat: Its last heartbeat.
        heard_s: When that came.
        unread_s: What `ClusterState.unread_s` was then.
        lost_of: The instance whose loss was told last; a heartbeat of it may still come after that.
        down_s: Since when it serves nothing; 0 if it serves.
        why: What happened to it.
        rate: Requests that it ended in a second, smoothed.
        ranks: What its leader told of each rank last.
        before: Requests taken, ended and broken by the instances before this one.
    """

    beat: Heartbeat
    heard_s: float
    down_s: float = 0.0
    why: str = ""
    rate: float = 0.0
    counted: tuple[float, int] = (0.0, 0)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    before: tuple[int, int, int] = (0, 0, 0)
    unread_s: float = 0.0
    lost_of: str = ""

    def silent_s(self, now_s: float, unread_s: float) -> float:
        """Seconds since it was heard in which the gateway was reading."""
        return now_s - self.heard_s - (unread_s - self.unread_s)


@dataclass(slots=True)
class ClusterState:
    """The knowledge. Times are monotonic seconds; `wall_ms` is the time of day for people.

    Attributes:
        groups: By name.
        sessions: Group and tokens of each session, by tenant and id; the newest at the end.
        incidents: What happened, the newest at the end.
        lost: Groups whose loss was told, and whose return was not.
        unread_s: Seconds so far in which the gateway itself read no messages; no
            group is taken for silent by them.
    """

    groups: dict[str, GroupEntry] = field(default_factory=dict)
    sessions: OrderedDict[tuple[str, str], tuple[str, int, int]] = field(default_factory=OrderedDict)
    incidents: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_INCIDENTS))
    lost: set[str] = field(default_factory=set)
    num_incidents: int = 0
    unread_s: float = 0.0

    def take_beat(self, beat: Heartbeat, now_s: float, wall_ms: int) -> None:
        """Takes the heartbeat of a group."""
        entry = self.groups.get(beat.group)
        if entry is None:
            if len(self.groups) >= MAX_GROUPS:
                return
            entry = self.groups[beat.group] = GroupEntry(beat, now_s, unread_s=self.unread_s)
            entry.counted = now_s, beat.ended_total
            if beat.state in _AWAY:
                entry.down_s, entry.why = now_s, beat.state
            elif beat.state == "ready" and beat.group in self.lost:  # it came back while there was no view
                self._tell("back", f"{beat.group} serves again", wall_ms, group=beat.group)
                self.lost.discard(beat.group)
            return
        if beat.instance_id == entry.beat.instance_id and beat.seq < entry.beat.seq:
            return
        self._note_gap(entry, beat, now_s, wall_ms)
        self._note_state(entry, beat, now_s, wall_ms)
        if beat.instance_id != entry.beat.instance_id:
            entry.before = _counted(entry)
            entry.why = entry.why and "restarted"
            entry.counted, entry.rate, entry.ranks = (now_s, beat.ended_total), 0.0, []
        since, ended = entry.counted
        if now_s - since >= 1.0:
            entry.rate = 0.5 * entry.rate + 0.5 * (beat.ended_total - ended) / (now_s - since)
            entry.counted = now_s, beat.ended_total
        entry.beat, entry.heard_s, entry.unread_s = beat, now_s, self.unread_s

    def take_down(self, down: GroupDown, now_s: float, wall_ms: int) -> None:
        """Takes the loss of a group; several routers may tell of the same one."""
        entry = self.groups.get(down.group)
        if entry is not None:
            if entry.down_s or entry.beat.instance_id not in {"", down.instance_id}:
                return
            entry.down_s, entry.why, entry.lost_of = now_s, "lost", down.instance_id
        if len(self.lost) < MAX_GROUPS:
            self.lost.add(down.group)
        load = entry.beat.load if entry else None
        self._tell(
            "lost",
            f"{down.group} is lost: {_CAUSES.get(down.cause) or _REASONS[down.reason]}",
            wall_ms,
            group=down.group,
            requests=load.running + load.waiting if load else None,
        )

    def take_ranks(self, group: str, instance_id: str, ranks: list[dict[str, Any]]) -> None:
        """Takes what the leader of a group tells of its ranks."""
        entry = self.groups.get(group)
        if entry is not None and entry.beat.instance_id == instance_id:
            entry.ranks = ranks

    def take_turns(self, turns: list[SessionTurn], wall_ms: int) -> None:
        """Takes where sessions were served."""
        for turn in turns:
            key = turn.tenant, turn.session_id
            self.sessions.pop(key, None)
            self.sessions[key] = turn.group, turn.num_tokens, wall_ms
        while len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)

    def note_moved(self, count: int, wall_ms: int) -> None:
        """Notes that requests of this gateway went on elsewhere after a loss."""
        ending = "request went on at another group" if count == 1 else "requests went on at other groups"
        self._tell("moved", f"{count} {ending}", wall_ms, requests=count)

    def note_pauses(self, count: int, longest_s: float, wall_ms: int) -> None:
        """Notes how long answers of this gateway paused because their group was lost."""
        answers = "an answer paused for" if count == 1 else f"{count} answers paused, the longest for"
        self._tell("pause", f"{answers} {longest_s * 1000:.0f} ms", wall_ms, seconds=round(longest_s, 4))

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """What all viewers share: groups and incidents, no sessions; see `hidden_from`."""
        for name in [name for name, entry in self.groups.items() if now_s - entry.heard_s > FORGET_S]:
            del self.groups[name]
        groups = [_shown(entry, now_s, self.unread_s) for _, entry in sorted(self.groups.items())]
        return {"groups": groups, "incidents": list(self.incidents)}

    def hidden_from(self, tenant: str) -> set[str]:
        """The groups of models that a tenant may not use."""
        return {name for name, entry in self.groups.items() if not entry.beat.model.admits(tenant)}

    def sessions_of(self, tenant: str) -> list[dict[str, Any]]:
        """The newest sessions of a tenant with the groups that have their KV."""
        shown: list[dict[str, Any]] = []
        for (owner, session_id), (group, tokens, wall_ms) in reversed(self.sessions.items()):
            if owner == tenant:
                shown.append(
                    {"session_id": session_id, "group": group, "tokens": tokens, "updated_ms": wall_ms}
                )
                if len(shown) == SHOWN_SESSIONS:
                    break
        return shown

    def _note_gap(self, entry: GroupEntry, beat: Heartbeat, now_s: float, wall_ms: int) -> None:
        """Notes a silence that callers felt: nobody waits for a group without requests."""
        load, silent_s = entry.beat.load, entry.silent_s(now_s, self.unread_s)
        requests = load.running + load.waiting
        if entry.down_s or beat.instance_id != entry.beat.instance_id or not requests:
            return
        if silent_s > _STALE_S:
            held = "a request" if requests == 1 else f"{requests} requests"
            text = f"{beat.group} was silent for {silent_s:.1f} s and had {held}"
            self._tell("silent", text, wall_ms, group=beat.group, requests=requests)

    def _note_state(self, entry: GroupEntry, beat: Heartbeat, now_s: float, wall_ms: int) -> None:
        if beat.state == "ready":
            if entry.down_s:
                away_s, entry.down_s, entry.why = now_s - entry.down_s, 0.0, ""
                text = f"{beat.group} serves again after {away_s:.1f} s"
                self._tell("back", text, wall_ms, group=beat.group, seconds=round(away_s, 3))
                self.lost.discard(beat.group)
        elif beat.state in _AWAY and not entry.down_s:
            entry.down_s, entry.why = now_s, beat.state
            change = "lost a rank and restarts it" if beat.state == "recovering" else f"is {beat.state}"
            self._tell(beat.state, f"{beat.group} {change}", wall_ms, group=beat.group)

    def _tell(self, kind: str, text: str, wall_ms: int, **data: Any) -> None:
        self.num_incidents += 1
        self.incidents.append(
            {"number": self.num_incidents, "kind": kind, "text": text, "at_ms": wall_ms, **data}
        )


def _counted(entry: GroupEntry) -> tuple[int, int, int]:
    """Requests taken, ended and broken by all instances that were heard."""
    beat, (taken, ended, broken) = entry.beat, entry.before
    return taken + beat.accepted_total, ended + beat.ended_total, broken + beat.broken_total


def _shown(entry: GroupEntry, now_s: float, unread_s: float) -> dict[str, Any]:
    beat, load = entry.beat, entry.beat.load
    taken, ended, broken = _counted(entry)
    silent = entry.silent_s(now_s, unread_s) > _STALE_S
    told = entry.why == "lost" or (silent and entry.lost_of == beat.instance_id)
    lost = told or silent
    return {
        "group": beat.group,
        "model": beat.model.name,
        "state": "lost" if told else "silent" if lost else beat.state,
        "ranks": beat.tensor_parallel,
        "rank_list": [] if lost else entry.ranks,
        "running": 0 if lost else load.running,
        "waiting": 0 if lost else load.waiting,
        "max_running": load.max_running,
        "max_waiting": load.max_waiting,
        "queued_tokens": 0 if lost else load.queued_tokens,
        "tokens_per_s": 0 if lost else round(load.tokens_per_s, 1),
        "used_blocks": 0 if lost else load.total_blocks - load.free_blocks,
        "total_blocks": load.total_blocks,
        "accepted": taken,
        "ended": ended,
        "broken": broken,
        "ended_per_s": 0 if lost else round(entry.rate, 1),
        "store": beat.kv.store,
        "away_s": round(now_s - entry.down_s, 1) if entry.down_s else 0,
    }
