"""Sequences that wait and run with an adapter: which of them may be admitted.

A sequence whose adapter is not loaded waits with the others, but admission does not see it, so the others
pass it.
"""

from bisect import insort
from operator import attrgetter

from services.worker.domain.adapters.choice import AdapterWant
from services.worker.domain.adapters.pool import AdapterPool
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.adapters import NO_ADAPTER

ORDER = attrgetter("order")


class AdapterQueue:
    """The waiting sequences with an adapter.

    Attributes:
        pool: The adapters of the engine.
        waiting: Sequences by their adapter's fingerprint, in order.
    """

    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool
        self.waiting: dict[str, list[Sequence]] = {}

    @property
    def num_held(self) -> int:
        """Sequences that wait for their adapter."""
        admits = self.pool.admits
        return sum([len(queue) for name, queue in self.waiting.items() if not admits(name)])

    def admits(self, sequence: Sequence) -> bool:
        """Returns whether a sequence may be admitted, as far as its adapter is concerned."""
        return sequence.adapter is None or self.pool.admits(sequence.adapter.fingerprint)

    def wait(self, sequence: Sequence) -> None:
        """Notes a sequence that waits."""
        if sequence.adapter is not None:
            insort(self.waiting.setdefault(sequence.adapter.fingerprint, []), sequence, key=ORDER)

    def stop_waiting(self, sequence: Sequence) -> None:
        """Notes that a sequence waits no more."""
        if sequence.adapter is not None:
            queue = self.waiting[sequence.adapter.fingerprint]
            queue.remove(sequence)
            if not queue:
                del self.waiting[sequence.adapter.fingerprint]

    def enter(self, sequence: Sequence) -> None:
        """Gives a sequence that comes in the slot of its adapter."""
        if sequence.adapter is not None:
            sequence.entered_with = sequence.num_output
            name = sequence.adapter.fingerprint
            sequence.slot = self.pool.enter(name, sequence.party, sequence.priority)

    def leave(self, sequence: Sequence) -> None:
        """Takes the slot from a sequence that does not run any more."""
        if sequence.adapter is not None:
            self.pool.leave(sequence.adapter.fingerprint, sequence.party, sequence.priority)
            sequence.slot = NO_ADAPTER

    def wants(self) -> list[AdapterWant]:
        """Returns the adapters that are waited for."""
        wants: list[AdapterWant] = []
        for name, queue in self.waiting.items():
            if not self.pool.admits(name):
                first = queue[0]
                assert first.adapter is not None
                begun = all(one.num_preemptions > 0 for one in queue)
                wants.append(AdapterWant(first.adapter, first.party, first.priority, begun))
        return wants

    def highest_waiting(self) -> dict[str, dict[str, int]]:
        """Returns for each adapter that is waited for the highest priority of each party."""
        highest: dict[str, dict[str, int]] = {}
        for name, queue in self.waiting.items():
            of_parties = highest[name] = {}
            for one in queue:  # in the order of priorities
                of_parties.setdefault(one.party, one.priority)
        return highest

    def check_invariants(self, waiting: list[Sequence], running: list[Sequence]) -> None:
        """Raises `AssertionError` unless queues, pool and sequences agree."""
        self.pool.check_invariants()
        with_adapter = [one for one in waiting if one.adapter is not None]
        if sum([len(queue) for queue in self.waiting.values()]) != len(with_adapter):
            raise AssertionError("sequences that wait with an adapter are counted wrong")
        for name, resident in self.pool.residents.items():
            using = [one for one in running if one.adapter is not None and one.adapter.fingerprint == name]
            if len(using) != resident.num_running or any(one.slot != resident.slot for one in using):
                raise AssertionError(f"sequences of adapter {name} run with another slot, or are miscounted")
        if any(one.adapter and one.adapter.fingerprint not in self.pool.residents for one in running):
            raise AssertionError("a sequence runs whose adapter has no slot")
