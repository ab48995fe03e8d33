"""One group as a router knows it: its last heartbeat, and an estimate of its load between heartbeats.

Load is the last heartbeat, plus what this router sent that the heartbeat did not count yet, less what the
group will have finished since at the rate it showed. Without the last term a fast group would seem full
between two heartbeats.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from services.router.domain.decision import GroupView
from services.router.domain.groups.busy_machine import BusyMachine
from shared.flow.circuit import Circuit
from shared.messages import DownReason, Heartbeat, Load

Standing = Literal["starting", "ready", "draining", "recovering", "failed", "stopped", "lost", "tripped"]
CAPACITY_MARGIN = 4  # between heartbeats a group with free slots may be sent so many times its capacity
_SCARCE = 0.125  # share of the blocks, below which the next prompt may not find enough of them
_RATE_HALF_LIFE_S = 0.1  # of the measured rate
LONGEST_SERVICE_S = 300.0  # a request takes no longer: what gateways allow one that does not say
_GAPS = 3.0  # longest gaps, from which on silence is more than another gap
_GAP_TIME_S = 60.0  # time constant of the memory of a long gap between heartbeats
_WITHOUT_REQUESTS = frozenset({"starting", "recovering", "failed"})
_IN_FLIGHT_S = 0.09  # age from which a sent request is in the heartbeat's counts, or lost

ASSUMED_TOKENS_PER_S = 500.0  # that a group computes, until it has measured its own rate: a slow CPU


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What to assume of a group's load.

    Attributes:
        max_inflight: Requests that it may hold, whatever it says itself.
        assumed_service_s: Seconds that a request takes, until a rate was measured.
        assumed_tokens_per_s: Tokens a second that a group can compute, whatever it computed of late, until
            it has measured its prompts.
    """

    max_inflight: int = 4096
    assumed_service_s: float = 0.5
    assumed_tokens_per_s: float = ASSUMED_TOKENS_PER_S


class Group:
    """The state of one instance of a group's leader. A restarted leader is a new `Group`."""

    def __init__(self, heartbeat: Heartbeat, now: float, breaker: Circuit, limits: LoadLimits) -> None:
        self.heartbeat = heartbeat
        self.name = heartbeat.group
        self.weight = heartbeat.weight  # its share of the sessions
        self.heard_at = now
        self.lost: DownReason | Literal[""] = ""  # why it is given up, until its next heartbeat
        self.lost_cause = ""  # and what a heartbeat said of its leader then, see `GroupDown.cause`
        self._ignored_until = now  # heartbeats before that were under way when it was lost
        self._missed_s = 0.0  # seconds since `heard_at` in which this router was not reading
        self._common_silence_s = 0.0  # and that in which no other group was heard either
        self.gap_s = 0.0  # the longest between two heartbeats lately; fades
        self._machine = BusyMachine()
        self._note_pressure(heartbeat, now)
        self.breaker = breaker
        self.sent_total = 0
        self.requests_per_s = 0.0  # requests that end, measured while there are any
        self._limits = limits
        self._pending = 0  # sent by all routers, and not yet counted by a heartbeat
        self._pending_tokens = 0
        self._sent_lately = self._sent_before = 0  # since `_turned_at`, and between the two turns before
        self._turned_at = now

    def observe(self, heartbeat: Heartbeat, now: float) -> bool:
        """Take in a newer heartbeat; returns whether the generations that ended tripped the breaker."""
        before, load = self.heartbeat, heartbeat.load
        accepted = max(0, heartbeat.accepted_total - before.accepted_total)
        held_before = before.load.running + before.load.waiting
        held = load.running + load.waiting
        if accepted or held_before:
            # heartbeats that were held up come at once, each with the ends of a whole interval
            elapsed = max(now - self.heard_at, heartbeat.interval_ms / 2000)
            rate = max(0, accepted + held_before - held) / elapsed
            known = self.requests_per_s
            newest = 1.0 - 0.5 ** (elapsed / _RATE_HALF_LIFE_S)
            self.requests_per_s = known + newest * (rate - known) if known else rate
        if now - self._turned_at >= _IN_FLIGHT_S:
            self._sent_before, self._sent_lately, self._turned_at = self._sent_lately, 0, now
        # a total of 0 is that of a leader that does not count, or has nothing to count
        unaccounted = self._pending - accepted if heartbeat.accepted_total else 0
        pending = min(max(0, unaccounted), self._sent_before + self._sent_lately)
        self._pending_tokens = self._pending_tokens * pending // self._pending if self._pending else 0
        self._pending = pending
        if accepted:
            self.breaker.count_success()
        gap_s = now - self.heard_at
        faded_s = self.gap_s * (1.0 - min(1.0, gap_s / _GAP_TIME_S))
        self.gap_s = max(self._irregular_s(heartbeat, gap_s), faded_s)
        self.heartbeat, self.heard_at = heartbeat, now
        self.lost = self.lost_cause = ""
        self._missed_s = self._common_silence_s = 0.0
        self._note_pressure(heartbeat, now)
        self.weight = heartbeat.weight
        return self.breaker.count_ends(
            max(0, heartbeat.ended_total - before.ended_total),
            max(0, heartbeat.broken_total - before.broken_total),
            now,
        )

    def _irregular_s(self, heartbeat: Heartbeat, gap_s: float) -> float:
        """Seconds of the gap before a heartbeat that say how irregular heartbeats are.

        What ended as a loss may have been a cut network or a freeze, which makes no heartbeat irregular. Then
        only that counts by which the sender itself was late.
        """
        own_s = gap_s - self._missed_s - self._common_silence_s
        if not self.lost:
            return own_s
        late_ms = heartbeat.vitals.late_ms if heartbeat.vitals is not None else heartbeat.interval_ms
        return min(own_s, (late_ms + heartbeat.interval_ms) / 1000)

    def count_sent(self, prompt_tokens: int, now: float, routers: int = 1) -> int:
        """This router sent it a request; returns for how many requests of all routers that stands.

        Of several routers each is given about as many requests as this one. A single request since the last
        heartbeat says nothing of the others, and stands for itself.
        """
        requests = routers if self._pending else 1
        self.sent_total += 1
        self._pending += requests
        self._pending_tokens += requests * prompt_tokens
        self._sent_lately += requests
        self.breaker.count_sent(now)
        return requests

    def mark_lost(self, reason: DownReason, cause: str = "") -> None:
        """Give it up until its next heartbeat."""
        self.lost, self.lost_cause = reason, cause

    def ignore_heartbeats_until(self, until: float) -> None:
        """Its connection broke: heartbeats before `until` were under way then."""
        self._ignored_until = until

    def ignores_heartbeats(self, now: float) -> bool:
        """Whether a heartbeat that comes now was under way when it was lost."""
        return bool(self.lost) and now < self._ignored_until

    def excuse_missed(self, seconds: float) -> None:
        """For so long this router did not listen."""
        self._missed_s += seconds

    def excuse_common_silence(self, seconds: float) -> None:
        """For so long no group at all was heard."""
        self._common_silence_s += seconds

    def own_silence_s(self, heard_up_to: float, common_silence_s: float, most_common_s: float) -> float:
        """How long it has been silent by its own fault, in seconds.

        Args:
            heard_up_to: The time up to which this router has read everything.
            common_silence_s: The silence of all groups that goes on now.
            most_common_s: So much of all common silence is excused at most.
        """
        common_s = min(self._common_silence_s + common_silence_s, most_common_s)
        return heard_up_to - self.heard_at - self._missed_s - common_s

    def standing(self, now: float) -> Standing:
        """Its own state, unless it is lost or its breaker is open; `stopped` after a clean end."""
        if self.lost:
            return "stopped" if self.lost == "stopped" else "lost"
        if self.heartbeat.state == "ready" and not self.breaker.allows(now):
            return "tripped"
        return self.heartbeat.state

    def timeout_s(
        self, usual_s: float, patience: float, delay_s: float = 0.0, patience_s: float = 0.0
    ) -> float:
        """Seconds of silence after which it is lost; at most `patience` times those of a calm group.

        A group whose heartbeats were far apart lately has `_GAPS` times its longest gap, and one on a busy
        machine at least what `BusyMachine` says. A group that takes no requests loses none, so it has the
        most.

        Args:
            usual_s: That of a calm group.
            delay_s: By how much the broker delayed this router's own messages lately.
            patience_s: What the router's own machine allows at least.
        """
        most_s = usual_s * patience
        if self.heartbeat.state in _WITHOUT_REQUESTS:
            return most_s
        patience_s = max(patience_s, self._machine.patience_s(self.heard_at))
        return min(most_s, max(usual_s, _GAPS * self.gap_s, patience_s) + delay_s)

    def _note_pressure(self, heartbeat: Heartbeat, now: float) -> None:
        if heartbeat.vitals is not None:
            self._machine.note(heartbeat.vitals.pressure, now)

    def view(self, now: float, lead_tokens: float = 0.0, adapter: str = "") -> GroupView:
        """Its load as of now; see the module's text for the estimate.

        Args:
            lead_tokens: Its work beyond its fair share; not counted until the group has measured its speed.
            adapter: The fingerprint of the request's adapter; empty: none.
        """
        load, kv = self.heartbeat.load, self.heartbeat.kv
        elapsed = now - self.heard_at
        finished = self.requests_per_s * elapsed
        # comparisons in place of `max`, here and below: every request asks for some of these views
        held = ceil(load.running + load.waiting + self._pending - finished)
        held = held if held > 0 else 0
        waiting = held - load.max_running
        if load.waiting or finished < 0:
            waiting = max(waiting, ceil(load.waiting - finished))
        waiting = min(held, waiting) if waiting > 0 else 0
        max_running = load.max_running if load.max_running > 1 else 1
        capacity = load.max_running + load.max_waiting or self._limits.max_inflight
        at_its_limit = load.running >= load.max_running > 0 or (load.waiting > 0 and is_short_of_blocks(load))
        if not at_its_limit:  # its speed is not known: what was sent since may be done already
            capacity *= CAPACITY_MARGIN
        queued_tokens = load.queued_tokens + self._pending_tokens - load.tokens_per_s * elapsed
        rate = self.requests_per_s
        if not rate or not at_its_limit:  # below the limit the measured rate is that of the callers
            assumed = max_running / self._limits.assumed_service_s
            rate = assumed if assumed > rate else rate
        least = max_running / LONGEST_SERVICE_S
        rate = least if least > rate else rate  # what was measured falls to 0 while nothing ends
        wait_s = waiting / rate
        known, lately = kv.recompute_tokens_per_s, load.tokens_per_s
        if queued_tokens > 0.0 and (known or lately):
            # a group with little to do had a low rate of late, which says nothing of its speed
            least = known or self._limits.assumed_tokens_per_s
            prefill_s = queued_tokens / (lately if lately > least else least)
            wait_s = prefill_s if prefill_s > wait_s else wait_s  # for a slot and for prompts: they overlap
        return GroupView(
            name=self.name,
            weight=self.weight,
            running=held - waiting,
            waiting=waiting,
            max_running=max_running,
            capacity=min(capacity, self._limits.max_inflight),
            wait_s=wait_s,
            tokens_per_s=load.tokens_per_s,
            recompute_tokens_per_s=known,
            fetch_tokens_per_s=kv.fetch_tokens_per_s,
            fetch_s=kv.fetch_s,
            store=kv.store,
            lead_s=lead_tokens / known if known else 0.0,
            has_adapter=bool(adapter) and adapter in self.heartbeat.adapters,
        )


def is_short_of_blocks(load: Load) -> bool:
    """Whether requests wait because memory is short. Else, with free slots, they are only being prepared."""
    return load.free_blocks <= load.total_blocks * _SCARCE
