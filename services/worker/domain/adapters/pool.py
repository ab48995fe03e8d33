"""The adapters that are in an engine's memory, within a bound of bytes, and the slots that they have.

Keeps the books: what is loaded or loading, how many running sequences use it, and which loads failed.
`choice.py` decides what comes and goes. Time is an argument.

`LoadFailures`: adapters that could not be loaded: why, and from when on the next request may try again.

Files that are damaged stay so, mostly, so each failure in a row doubles the pause. Meanwhile requests fail at
once with the same reason.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush

from services.worker.domain.adapters.sequence_adapter import SequenceAdapter

FIRST_S, LONGEST_S = 1.0, 60.0  # pauses
MAX_FAILURES = 1024  # adapters that are remembered; beyond it the oldest failure is forgotten
_WEIGHT = 0.2  # of the newest load
MAX_NAMED = 64  # adapters that a heartbeat names; each group sends many heartbeats a second


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    pause_s: float
    until: float


class LoadFailures:
    """Failures by fingerprint."""

    def __init__(self) -> None:
        self._known: dict[str, _Failure] = {}

    def add(self, fingerprint: str, reason: str, now: float) -> None:
        """Notes a failure."""
        before = self._known.pop(fingerprint, None)
        pause_s = FIRST_S if before is None else min(LONGEST_S, 2 * before.pause_s)
        self._known[fingerprint] = _Failure(reason, pause_s, now + pause_s)
        while len(self._known) > MAX_FAILURES:
            del self._known[next(iter(self._known))]

    def forget(self, fingerprint: str) -> None:
        """Forgets failures of an adapter that could be loaded."""
        self._known.pop(fingerprint, None)

    def reason(self, fingerprint: str, now: float) -> str:
        """Returns why an adapter is not to be loaded now; empty: it may be."""
        known = self._known.get(fingerprint)
        return known.reason if known is not None and now < known.until else ""


@dataclass(slots=True, eq=False)
class Resident:
    """An adapter that has a slot.

    Attributes:
        party: Who used it last; its bytes count as theirs.
        ready: It is loaded.
        closing: No sequence begins with it any more, since another adapter is to have its room.
        num_running: Sequences that run with it.
        running: The same by party and priority: several tenants may use one adapter.
        num_entered: Sequences that have run with it in this slot.
        ready_at: When it was loaded.
        used: Grows with each use of any adapter: the least was used the longest time ago.
    """

    adapter: SequenceAdapter
    slot: int
    party: str
    ready: bool = False
    closing: bool = False
    num_running: int = 0
    running: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    num_entered: int = 0
    ready_at: float = 0.0
    used: int = 0


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """What ranks are to do with a slot: load an adapter into it, or, for None, empty it."""

    slot: int
    adapter: SequenceAdapter | None


class AdapterPool:
    """Slots for adapters.

    Args:
        most_bytes: The bound.

    Attributes:
        residents: Those that have a slot, by fingerprint.
        failures: Loads that failed of late.
        orders: For the ranks, in order; those who read them empty the list.
        num_bytes: Memory of all residents.
        num_evicted: Adapters that made room for others so far.
        load_s: Seconds of a load, of late; 0: not measured yet.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.residents: dict[str, Resident] = {}
        self.failures = LoadFailures()
        self.orders: list[SlotOrder] = []
        self.num_bytes = 0
        self.num_evicted = 0
        self.load_s = 0.0
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._uses = 0

    def admits(self, fingerprint: str) -> bool:
        """Returns whether sequences of an adapter may begin."""
        resident = self.residents.get(fingerprint)
        return resident is not None and resident.ready and not resident.closing

    def enter(self, fingerprint: str, party: str, priority: int) -> int:
        """Counts a sequence that begins to run; returns the slot."""
        resident = self.residents[fingerprint]
        if not resident.ready:
            raise ValueError(f"adapter {fingerprint} is not loaded")
        resident.running[party, priority] += 1
        resident.party = party
        resident.num_running += 1
        resident.num_entered += 1
        self._note_use(resident)
        return resident.slot

    def leave(self, fingerprint: str, party: str, priority: int) -> None:
        """Counts a sequence that does not run any more."""
        resident = self.residents[fingerprint]
        resident.num_running -= 1
        resident.running[party, priority] -= 1
        if not resident.running[party, priority]:
            del resident.running[party, priority]
        self._note_use(resident)

    def begin_load(self, adapter: SequenceAdapter, party: str) -> None:
        """Gives an adapter a slot, and orders that it is loaded. There must be room."""
        if self.num_bytes + adapter.num_bytes > self.most_bytes:
            raise ValueError(f"adapter {adapter.fingerprint} exceeds the pool's bound")
        slot = heappop(self._free_slots) if self._free_slots else self._num_slots
        self._num_slots = max(self._num_slots, slot + 1)
        resident = Resident(adapter, slot, party)
        self.residents[adapter.fingerprint] = resident
        self.num_bytes += adapter.num_bytes
        self._note_use(resident)
        self.orders.append(SlotOrder(slot, adapter))

    def end_load(self, fingerprint: str, error: str, now: float, seconds: float = 0.0) -> None:
        """Books the end of a load that took so long; with an error its slot is free again."""
        resident = self.residents[fingerprint]
        if error:
            self._remove(resident)
            self.failures.add(fingerprint, error, now)
            return
        self.failures.forget(fingerprint)
        resident.ready, resident.ready_at = True, now
        self.load_s += (seconds - self.load_s) * (_WEIGHT if self.load_s else 1.0)

    def evict(self, resident: Resident) -> None:
        """Takes the slot of an adapter with which nothing runs. The ranks empty it, or load the next one."""
        if resident.num_running or not resident.ready:
            raise ValueError(f"adapter {resident.adapter.fingerprint} is in use")
        self._remove(resident)
        self.num_evicted += 1
        self.orders.append(SlotOrder(resident.slot, None))

    def take_orders(self) -> list[SlotOrder]:
        """Returns what is new for the ranks; a slot that is loaded again is not emptied before."""
        orders, self.orders = self.orders, []
        last = {order.slot: index for index, order in enumerate(orders)}
        return [order for index, order in enumerate(orders) if last[order.slot] == index]

    def ready_fingerprints(self) -> list[str]:
        """Returns the adapters that are loaded, those used last first; at most `MAX_NAMED`."""
        ready = [one for one in self.residents.values() if one.ready]
        ready.sort(key=lambda one: -one.used)
        return [one.adapter.fingerprint for one in ready[:MAX_NAMED]]

    def check_invariants(self) -> None:
        """Raises `AssertionError` unless bytes and slots agree."""
        residents = list(self.residents.values())
        total = sum([one.adapter.num_bytes for one in residents])
        if total != self.num_bytes or total > self.most_bytes:
            raise AssertionError(
                f"adapters take {total} bytes, counted {self.num_bytes} of {self.most_bytes}"
            )
        slots = [one.slot for one in residents] + self._free_slots
        if sorted(slots) != list(range(self._num_slots)):
            raise AssertionError(f"slots of adapters are lost or given twice: {sorted(slots)}")
        if any(one.num_running != one.running.total() for one in residents):
            raise AssertionError("sequences that run with an adapter are counted wrong by party")
        if any(one.num_running < 0 or (one.num_running and not one.ready) for one in residents):
            raise AssertionError("sequences run with an adapter that is not loaded")

    def _remove(self, resident: Resident) -> None:
        del self.residents[resident.adapter.fingerprint]
        self.num_bytes -= resident.adapter.num_bytes
        heappush(self._free_slots, resident.slot)

    def _note_use(self, resident: Resident) -> None:
        self._uses += 1
        resident.used = self._uses
