"""Decides which adapters are loaded next, and which make room for them. Pure.

Of those that requests wait for, the party with the fewest bytes of the pool comes first, and in a party the
highest priority, then the one that is waited for the longest. A priority counts within a party alone, but for
the lowest, that of background work, which comes after the others of all parties. Room comes first from
adapters that nothing uses, the one used longest ago first. An adapter in constant use would keep its slot for
ever, so when another one is waited for longer than `CLOSE_S`, the one that was served the longest closes: no
sequence begins with it any more, and its slot is free when those that run have ended. They are preempted
after `FIRST_S` for a sequence that has no token yet, and for others after `PREEMPT_S`, or the time in which
all slots can be loaded. So adapters share few slots in rotation.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from services.worker.domain.adapters.pool import AdapterPool, Resident
from services.worker.domain.adapters.sequence_adapter import SequenceAdapter
from shared.messages.base import BACKGROUND_PRIORITY

CLOSE_S = 0.05  # about what a load takes: a shorter rotation would load more than compute
FIRST_S = 0.1  # the same for sequences without a token so far, whose callers see nothing yet
PREEMPT_S = 0.25  # some tokens of each stream; a few times of what a first token takes
BEGUN_LAG_S = 0.3  # for which sequences that have tokens let others come to their first one
POOL_SHARE = 0.5  # of the pool that one party keeps while an adapter of another one is waited for
LEAST = -(2**31)  # below all priorities: of an adapter that nothing uses
MAX_LOADS = 2  # at a time: ranks load one after the other, and a slot that waits for its load is idle
MAX_SERVED = 32  # wants that are considered in one decision, of those that come first


class AdapterWant(NamedTuple):
    """An adapter with which sequences wait to run.

    Attributes:
        party: Of the first of them.
        priority: The highest of theirs.
        begun: All of them have run before.
    """

    adapter: SequenceAdapter
    party: str
    priority: int
    begun: bool


@dataclass(slots=True)
class AdapterChanges:
    """What was decided, by fingerprint, beside the pool's orders for ranks.

    Attributes:
        closed: No sequence begins with these any more.
        opened: Sequences may begin with these again.
        preempt: Running sequences of these are to be preempted.
        refused: These are not loaded, and why.
    """

    closed: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    preempt: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


class AdapterChoice:
    """Decisions about one pool."""

    def __init__(self, pool: AdapterPool) -> None:
        self._pool = pool
        self._since: dict[str, float] = {}  # since when an adapter is waited for that admits none

    def decide(
        self, wants: list[AdapterWant], waiting: Mapping[str, Mapping[str, int]], now: float
    ) -> AdapterChanges:
        """Loads, evicts, closes and opens adapters.

        Args:
            wants: What is waited for; only adapters that do not admit sequences.
            waiting: All adapters with sequences that wait, and the highest priority of each party's.
            now: Monotonic seconds.
        """
        changes = AdapterChanges()
        absent = self._absent(wants, now, changes)
        room = _Room(self._pool, waiting)
        for want in absent[:MAX_SERVED]:
            self._serve(want, room, changes, now)
        for resident in room.unreserved_closing():
            resident.closing = False
            changes.opened.append(resident.adapter.fingerprint)
        return changes

    def _absent(self, wants: list[AdapterWant], now: float, changes: AdapterChanges) -> list[AdapterWant]:
        """Returns the wants that have no slot, in the order in which they get one."""
        pool, since = self._pool, self._since
        absent: list[AdapterWant] = []
        for want in wants:
            name = want.adapter.fingerprint
            reason = pool.failures.reason(name, now)
            if not reason and want.adapter.num_bytes > pool.most_bytes:
                reason = f"it takes {want.adapter.num_bytes} bytes, the pool has {pool.most_bytes}"
            if reason:
                changes.refused.append((name, reason))
            elif name not in pool.residents:
                absent.append(want)
        known = {want.adapter.fingerprint for want in absent}
        for name in [name for name in since if name not in known]:
            del since[name]
        for want in absent:
            since.setdefault(want.adapter.fingerprint, now + (BEGUN_LAG_S if want.begun else 0.0))
        absent.sort(key=lambda want: (-want.priority, since[want.adapter.fingerprint]))
        held = _held_bytes(pool)
        shares: list[int] = []
        for want in absent:
            shares.append(held[want.party])
            held[want.party] += want.adapter.num_bytes
        # a party's shares grow along its wants, so these keep their order
        order = sorted(
            range(len(absent)),
            key=lambda index: (
                _is_background(absent[index].priority),
                shares[index],
                since[absent[index].adapter.fingerprint],
            ),
        )
        return [absent[index] for index in order]

    def _serve(self, want: AdapterWant, room: "_Room", changes: AdapterChanges, now: float) -> None:
        """Loads an adapter, or reserves for it the room that will be free."""
        wanted, pool = want.adapter.num_bytes, self._pool
        idle = room.take_idle(wanted)
        busy = room.num_loading >= MAX_LOADS
        if room.free >= wanted:
            if not busy:
                for resident in idle:
                    pool.evict(resident)
                pool.begin_load(want.adapter, want.party)
                room.num_loading += 1
            room.free -= wanted
            room.held[want.party] += wanted
            return
        waited_s = now - self._since[want.adapter.fingerprint]
        reserved = room.take_closing(wanted)
        if room.free + room.later < wanted and not busy:
            for resident in self._victims(want, room, waited_s, now):
                if room.free + room.later >= wanted:
                    break
                resident.closing = True
                changes.closed.append(resident.adapter.fingerprint)
                room.reserve(resident)
                reserved.append(resident)
                room.num_loading += 1
        room.keep(wanted)
        room.held[want.party] += wanted
        rotation_s = max(PREEMPT_S, pool.load_s * len(pool.residents)) if want.begun else FIRST_S
        for resident in reserved:
            urgent = _advantage(want, resident, room) > 0
            if resident.num_running and (
                urgent or (waited_s >= rotation_s and now - resident.ready_at >= rotation_s)
            ):
                changes.preempt.append(resident.adapter.fingerprint)

    def _victims(self, want: AdapterWant, room: "_Room", waited_s: float, now: float) -> list[Resident]:
        """Returns which adapters may close for another one, those that do it first at the beginning."""
        pool = self._pool
        held, bound = room.held, POOL_SHARE * pool.most_bytes
        own = held[want.party]
        found: list[tuple[bool, float, Resident]] = []
        for one in room.in_use:
            advantage = _advantage(want, one, room)
            if one.closing or advantage < 0:
                continue
            if not advantage:
                greedy = one.party != want.party and held[one.party] > bound
                richer = one.party == want.party or held[one.party] > own
                # one that was loaded and has run nothing yet would be loaded for nothing
                rested = one.num_entered > 0 and now - one.ready_at >= CLOSE_S
                if not richer or not rested or not (greedy or waited_s >= CLOSE_S):
                    continue
            found.append((one.party == want.party or held[one.party] <= bound, one.ready_at, one))
        found.sort(key=lambda entry: entry[:2])
        return [one for _, _, one in found]


class _Room:
    """The room in a pool during one decision: free, of idle adapters, of closing ones, of others in use.

    Attributes:
        free: Bytes that are free and that no want has yet.
        later: The same that will be free when reserved adapters have ended.
        num_loading: Adapters that are being loaded, or close for one that is loaded then.
        in_use: Loaded adapters with sequences that run, or wait and may begin.
        held: Bytes by party, when what is decided is done.
    """

    def __init__(self, pool: AdapterPool, waiting: Mapping[str, Mapping[str, int]]) -> None:
        self.free, self.later = pool.most_bytes - pool.num_bytes, 0
        self.held = _held_bytes(pool)
        self.num_loading = 0
        self._waiting = waiting
        self._idle: list[Resident] = []
        self._closing: list[Resident] = []
        self.in_use: list[Resident] = []
        for one in pool.residents.values():
            if not one.ready:
                self.num_loading += 1
                continue
            if not one.num_running and (one.closing or one.adapter.fingerprint not in waiting):
                self._idle.append(one)
            elif one.closing:
                self._closing.append(one)
            else:
                self.in_use.append(one)
        self._idle.sort(key=lambda one: -one.used)
        self._closing.sort(key=lambda one: -one.ready_at)

    def priorities(self, resident: Resident) -> dict[str, int]:
        """Returns each party's highest priority among what runs with an adapter, or waits and may begin."""
        waiting = {} if resident.closing else self._waiting.get(resident.adapter.fingerprint, {})
        highest = {**waiting}
        for party, priority in resident.running:
            highest[party] = max(priority, highest.get(party, priority))
        return highest

    def take_idle(self, wanted: int) -> list[Resident]:
        """Reserves idle adapters until so many bytes are free, as far as there are some."""
        taken: list[Resident] = []
        while self.free < wanted and self._idle:
            taken.append(self._idle.pop())
            self.held[taken[-1].party] -= taken[-1].adapter.num_bytes
            self.free += taken[-1].adapter.num_bytes
        return taken

    def take_closing(self, wanted: int) -> list[Resident]:
        """Reserves closing adapters until so many bytes will be free, likewise."""
        taken: list[Resident] = []
        while self.free + self.later < wanted and self._closing:
            taken.append(self._closing.pop())
            self._count(taken[-1])
        return taken

    def reserve(self, resident: Resident) -> None:
        """Reserves one in use, which closes."""
        self.in_use.remove(resident)
        self._count(resident)

    def keep(self, wanted: int) -> None:
        """Keeps so many bytes for a want, or what there is, so that no smaller want takes them."""
        now = min(self.free, wanted)
        self.free -= now
        self.later = max(0, self.later - (wanted - now))

    def unreserved_closing(self) -> list[Resident]:
        """Returns those that close for nothing any more."""
        return self._closing + [one for one in self._idle if one.closing]

    def _count(self, resident: Resident) -> None:
        self.held[resident.party] -= resident.adapter.num_bytes
        self.later += resident.adapter.num_bytes


def _advantage(want: AdapterWant, resident: Resident, room: _Room) -> int:
    """By how much a want goes before an adapter in use; below 0: it goes after it.

    Priorities of two parties are equal, but background work goes after other work of all. Of an adapter that
    several parties use, the want goes before the one that it has the least advantage over.
    """
    background = _is_background(want.priority)
    least = want.priority - LEAST
    for party, priority in room.priorities(resident).items():
        own = party == want.party
        least = min(least, want.priority - priority if own else _is_background(priority) - background)
    return least


def _is_background(priority: int) -> bool:
    """Whether a priority is that of background work, or of nothing."""
    return priority <= BACKGROUND_PRIORITY


def _held_bytes(pool: AdapterPool) -> Counter[str]:
    held = Counter[str]()
    for one in pool.residents.values():
        held[one.party] += one.adapter.num_bytes
    return held
