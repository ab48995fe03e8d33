"""Admission: which waiting sequences get blocks and a running slot.

Parties by their credit (`fairness/party_order.py`), each in order, and by blocks: a sequence gets those of
all its tokens at once, so only decodes ever run short. A sequence whose beginning another one computes just
now waits for that instead of computing it again.
"""

from bisect import insort
from collections.abc import Callable

from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.background import has_background, is_background
from services.worker.domain.scheduling.fairness.party_order import PartyOrder
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import ORDER, SchedulerLimits, SequenceQueues
from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_PREFILLS = 8  # prompts that may be in work at once, however long they are
MAX_HELD_BACK = 16  # sequences skipped in a step because their beginning is being computed


class SequenceAdmission:
    """Moves sequences from the waiting to the running ones; counts hits of the prefix cache.

    Args:
        write_behind: Knows what the store has.
        fetches: Returns whether that many blocks are fetched instead of computed, when so many tokens are to
            be computed before them.

    Attributes:
        waiting: Sequences that wait; read only.
    """

    def __init__(
        self,
        queues: SequenceQueues,
        limits: SchedulerLimits,
        names: BlockNames,
        write_behind: WriteBehind,
        fetches: Callable[[int, int], bool],
    ) -> None:
        self.waiting = queues.waiting
        self._queues = queues
        self._limits = limits
        self._order = PartyOrder(queues.fair, self._estimate_found)
        self._names = names
        self._write_behind = write_behind
        self._fetches = fetches
        self._counts = (0, 0)

    def take_counts(self) -> tuple[int, int]:
        """Returns tokens looked up and found since the last call; only first admissions count."""
        counts, self._counts = self._counts, (0, 0)
        return counts

    def find_light(self) -> None:
        """Finds out which parties ask for less than their share, before a step is planned."""
        queues = self._queues
        queues.fair.find_light(queues.running, queues.waiting_of, self._estimate_found)

    def admit_light(self, prefilling: list[Sequence], rest: int) -> None:
        """Admits sequences of light parties alone, whatever prompts of others are in work; see `admit`."""
        fair, waiting = self._queues.fair, self._queues.waiting_of
        if any(fair.is_light(queue[0]) for queue in waiting.values()):
            self.admit([one for one in prefilling if fair.is_light(one)], rest, only_light=True)

    def admit(self, prefilling: list[Sequence], rest: int, *, only_light: bool = False) -> None:
        """Admits sequences while there are slots, blocks and budget. A few blocks stay free for decodes.

        Args:
            prefilling: Sequences whose prompts are being computed; gets the admitted ones.
            rest: Tokens of this step that are left for prompts.
            only_light: Ends at the first sequence of another party.
        """
        queues = self._queues
        if not queues.waiting:
            return
        passed = set[int]()
        booked = dict[str, float]()
        for one in prefilling:
            booked[one.party] = booked.get(one.party, 0.0) + one.remaining
        ahead = sum(s.remaining for s in prefilling)
        demand = sum(min(s.remaining, rest // 2) for s in prefilling)
        while len(passed) < MAX_HELD_BACK and len(queues.running) < self._limits.max_running:
            sequence = self._next(passed, booked)
            if sequence is None or sequence.pending or (only_light and not queues.fair.is_light(sequence)):
                break  # pending: it was preempted a moment ago, and the step that runs brings its next token
            names = self._names.to_find(sequence)
            enough = demand >= rest and (len(prefilling) >= MIN_PREFILLS or rest < 1)
            if enough and not self._to_fetch(sequence, names, queues.blocks.num_found(names), ahead):
                break  # a fetch takes nothing of this step
            if queues.is_coming(sequence, names):
                passed.add(id(sequence))
                continue
            if not queues.enter(sequence, names, queues.spare_blocks()):
                break
            self._count(sequence)
            self._order.note_admitted(sequence)
            booked[sequence.party] = booked.get(sequence.party, 0.0) + sequence.remaining
            if is_background(sequence) and queues.fair.floor.is_due:
                queues.fair.floor.lease(sequence)
            # what is here and was never written, or is lost there, gets another chance
            found = sequence.computed // BLOCK_SIZE
            self._write_behind.add(names[:found])
            stored = self._to_fetch(sequence, names, found, ahead)
            if stored:
                queues.fetch(sequence, names[found:stored])
                continue
            insort(prefilling, sequence, key=ORDER)
            ahead += sequence.remaining
            demand += min(sequence.remaining, rest // 2)
        if not only_light:
            queues.urgent = None  # what was freed for it did not suffice

    def _next(self, passed: set[int], booked: dict[str, float]) -> Sequence | None:
        """Returns the waiting sequence that is next, see `PartyOrder`."""
        queues = self._queues
        urgent, floor = queues.urgent, queues.fair.floor
        if urgent is not None and id(urgent) not in passed:
            return urgent
        if floor.is_due and floor.leased is None and not has_background(queues.running):
            first = self._order.next_background(queues.waiting_of, queues.running_of, passed, booked)
            if first is not None:
                return first
        return self._order.next_waiting(queues.waiting_of, queues.running_of, passed, booked)

    def _estimate_found(self, sequence: Sequence) -> int:
        """Returns about how many tokens of a sequence are in the cache."""
        return BLOCK_SIZE * self._queues.blocks.estimate_found(self._names.to_find(sequence))

    def _to_fetch(self, sequence: Sequence, names: list[bytes], found: int, ahead: int) -> int:
        """Returns up to which block to fetch if the first `found` blocks are here; 0 for none."""
        if sequence.stored < 0 or not self._write_behind.enabled:
            return 0
        last = (len(sequence.tokens) - 1) // BLOCK_SIZE
        stored = min(last, max(sequence.stored, self._write_behind.num_known_of(names)))
        stored = self._write_behind.num_trusted_of(names[:stored])
        if stored <= found or not (sequence.always_fetch or self._fetches(stored - found, ahead)):
            return 0
        return stored

    def _count(self, sequence: Sequence) -> None:
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.computed
            queried, cached = self._counts
            self._counts = queried + len(sequence.tokens), cached + sequence.computed
