"""The queues of waiting and running sequences, and the changes when a sequence comes, goes or is preempted.

Keeps both queues in order, the block tables of running sequences, and the seq_ids that ranks must forget.
`admission.py` and `preemption.py` decide which sequences move between the queues.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from services.worker.domain.adapters.pool import AdapterPool
from services.worker.domain.adapters.waiting import AdapterQueue
from services.worker.domain.blocks.fetches import BlockFetch, BlockFetches
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.fairness.fair_shares import FairShares
from services.worker.domain.scheduling.fairness.slot_share import SlotShare
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.rank_protocol.plan import BLOCK_SIZE

ORDER = attrgetter("order")
_UNBOUNDED = 2**62  # more than there are tokens


@dataclass(slots=True, frozen=True)
class SchedulerLimits:
    """Bounds of a scheduler.

    Attributes:
        token_budget: Tokens per step; at least `max_running`.
        max_running: Sequences that may run.
        max_waiting: Sequences that may wait.
        itl_target_s: How long a step with parts of prompts may take while other sequences decode; 0 for no
            limit.
        tenant_share: Share of the running slots that one party may have beside others.
        draft_tokens: Guesses that are checked with the next token of a sequence at most; 0: none are.
    """

    token_budget: int
    max_running: int
    max_waiting: int
    itl_target_s: float
    tenant_share: float
    draft_tokens: int

    def __post_init__(self) -> None:
        if self.token_budget < self.max_running or self.max_running < 1 or self.max_waiting < 0:
            raise ValueError(
                f"token_budget ({self.token_budget}) must be at least max_running ({self.max_running}), "
                f"which must be positive, and max_waiting ({self.max_waiting}) not negative"
            )


class SequenceQueues:
    """Both queues are in order of priority, then arrival.

    Attributes:
        waiting: Sequences that wait.
        running: Sequences that run.
        waiting_of: The waiting sequences of each tenant, without those whose adapter is not loaded.
        running_of: How many sequences of each tenant run.
        release: seq_ids that the next plan releases at the ranks.
        coming: Names of blocks that a running sequence is about to compute, to the first such sequence.
        adapters: Sequences with an adapter, and the adapters that are loaded.
        fetches: Blocks that come from the store; a running sequence that waits for some is not computed.
        fair: What each party was given, and what background work may have beside others.
        urgent: A waiting sequence for which others were preempted; it is admitted first.
        num_preemptions: Sequences preempted so far.
        last_seq_id: Number of the sequence that ran last; the ranks know sequences by these.
        earliest_deadline: A lower bound of all deadlines, in monotonic seconds.
    """

    def __init__(self, blocks: BlockManager, adapters: AdapterPool | None, limits: SchedulerLimits) -> None:
        self.blocks = blocks
        self.adapters = AdapterQueue(adapters or AdapterPool(0))
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.waiting_of: dict[str, list[Sequence]] = {}
        self.running_of: Counter[str] = Counter()
        self.release: list[int] = []
        self.coming: dict[bytes, Sequence] = {}
        self.fetches = BlockFetches(blocks)
        self.fair = FairShares(limits.token_budget, SlotShare(limits.max_running, limits.tenant_share))
        self.urgent: Sequence | None = None
        self.num_preemptions = 0
        self.last_seq_id = 0
        self.earliest_deadline = float("inf")

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        if blocks_for(len(sequence.tokens) + (not sequence.prompt_only)) > self.blocks.num_blocks:
            raise ValueError(f"{len(sequence.tokens)} tokens never fit into {self.blocks.num_blocks} blocks")
        self._wait(sequence)
        self.fair.enter(sequence)
        self.earliest_deadline = min(self.earliest_deadline, sequence.deadline)

    def enter(self, sequence: Sequence, names: list[bytes], spare: int) -> bool:
        """Lets a waiting sequence run, with blocks for all its tokens; False if these are not free."""
        seq_id = self.last_seq_id + 1
        cached = self.blocks.allocate(seq_id, len(sequence.tokens), names, spare)
        if cached is None:
            return False
        self.last_seq_id = sequence.seq_id = seq_id
        self._stop_waiting(sequence)
        insort(self.running, sequence, key=ORDER)
        self.running_of[sequence.party] += 1
        sequence.phase = SequencePhase.RUNNING
        self.adapters.enter(sequence)
        sequence.computed = sequence.planned = cached
        sequence.new_blocks = list(self.blocks.table(seq_id))
        sequence.capacity = len(sequence.new_blocks) * BLOCK_SIZE
        sequence.sliding_capacity = _UNBOUNDED if self.blocks.sliding is None else 0
        for name in names[cached // BLOCK_SIZE :]:
            self.coming.setdefault(name, sequence)
        return True

    def admit_adapter(self, fingerprint: str) -> None:
        """Lets admission see the sequences that wait with an adapter, which is loaded now."""
        for sequence in self.adapters.waiting.get(fingerprint, ()):
            insort(self.waiting_of.setdefault(sequence.party, []), sequence, key=ORDER)

    def hold_adapter(self, fingerprint: str) -> None:
        """Hides the sequences that wait with an adapter from admission."""
        for sequence in self.adapters.waiting.get(fingerprint, ()):
            self._remove_of_party(sequence)

    def is_coming(self, sequence: Sequence, names: list[bytes]) -> bool:
        """Whether a sequence before it in order is about to compute the first block that it lacks."""
        if not self.coming:
            return False
        for name in names[: (len(sequence.tokens) - 1) // BLOCK_SIZE]:
            if not self.blocks.is_cached(name):
                owner = self.coming.get(name)
                return owner is not None and owner.order <= sequence.order
        return False

    def spare_blocks(self) -> int:
        """Returns how many blocks an admission leaves free for decodes."""
        return min(len(self.running), self.blocks.num_blocks // 32)

    def computed(self, sequence: Sequence, first: int, names: list[bytes]) -> None:
        """Registers full blocks of a running sequence, from its block `first` on, to be shared.

        Then it gives up the sliding blocks that are behind its window: the store may still copy them, for
        they get other content in a later step at the earliest.
        """
        self.blocks.register(sequence.seq_id, first, names)
        if self.blocks.sliding is not None:
            self.blocks.sliding.slide(sequence.seq_id, sequence.computed)
        for name in names:
            self.coming.pop(name, None)

    def fetch(self, sequence: Sequence, names: list[bytes]) -> None:
        """Begins a fetch for a sequence that has just come in, of the blocks after those that it found."""
        self.fetches.begin(sequence, sequence.computed // BLOCK_SIZE, names)

    def fetched(self, fetch_id: int, count: int) -> BlockFetch | None:
        """Ends a fetch that brought `count` blocks; its sequence goes on from there."""
        fetch = self.fetches.end(fetch_id, count)
        if fetch is not None and fetch.sequence is not None:
            sequence, num_tokens = fetch.sequence, (fetch.first + count) * BLOCK_SIZE
            sequence.computed = sequence.planned = num_tokens
            sequence.fetched_tokens += count * BLOCK_SIZE
            if not sequence.num_preemptions:
                sequence.cached_tokens = num_tokens
            for name in fetch.names[:count]:
                self.coming.pop(name, None)
        return fetch

    def preempt(self, sequence: Sequence) -> None:
        """Preempts a running sequence: its blocks are freed, and it waits to be computed again."""
        self._leave(sequence)
        self.fair.floor.end(sequence)
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        self._wait(sequence)

    def end(self, sequence: Sequence, *, forget: bool = False) -> None:
        """Removes a sequence, waiting or running; with `forget` the content of its blocks is not reused."""
        if sequence.phase is SequencePhase.WAITING:
            self._stop_waiting(sequence)
        elif sequence.phase is SequencePhase.RUNNING:
            if forget:
                self.blocks.forget(sequence.seq_id)  # it was computed, so it waits for no fetch
            self._leave(sequence)
        if sequence.phase is SequencePhase.WAITING or sequence.phase is SequencePhase.RUNNING:
            self.fair.leave(sequence)
        sequence.phase = SequencePhase.ENDED

    def expire(self, now: float) -> list[Sequence]:
        """Returns the sequences whose deadline has passed; they stay where they are."""
        if now < self.earliest_deadline:
            return []
        late, earliest = [], float("inf")
        for sequence in self.waiting + self.running:
            if sequence.deadline <= now:
                late.append(sequence)
            else:
                earliest = min(earliest, sequence.deadline)
        self.earliest_deadline = earliest
        return late

    def check_invariants(self) -> None:
        """Raises `AssertionError` when queues, blocks and sequences do not agree."""
        self.blocks.check_invariants()
        self.fetches.check_invariants()
        for sequence in self.running:
            held = len(self.blocks.table(sequence.seq_id)) * BLOCK_SIZE
            sound = sequence.computed <= sequence.planned <= sequence.capacity == held
            if sequence.phase is not SequencePhase.RUNNING or not sound:
                raise AssertionError(f"sequence {sequence.seq_id} says {sequence.capacity}, its table {held}")
        for sequence in self.waiting:
            if sequence.phase is not SequencePhase.WAITING or sequence.seq_id or sequence.planned:
                raise AssertionError(f"a sequence of request {sequence.request_id} waits and runs")
        if self.running_of != Counter(s.party for s in self.running):
            raise AssertionError(f"the running places of tenants are counted wrong: {self.running_of}")
        self.adapters.check_invariants(self.waiting, self.running)
        self.fair.check_invariants(self.waiting + self.running)
        counts = Counter(s.party for s in self.waiting if self.adapters.admits(s))
        if {tenant: len(queue) for tenant, queue in self.waiting_of.items()} != counts:
            raise AssertionError("the waiting sequences of tenants are not those that wait")
        if len({s.seq_id for s in self.running}) != len(self.running) or self._out_of_order():
            raise AssertionError("running sequences share a seq_id, or the queues are out of order")
        if not self.running and not len(self.fetches) and self.blocks.num_used:
            raise AssertionError(f"{self.blocks.num_used} blocks are in use and nothing runs")
        sliding = self.blocks.sliding
        if sliding is not None and not self.running and not len(self.fetches) and sliding.num_used:
            raise AssertionError(f"{sliding.num_used} sliding blocks are in use and nothing runs")
        if not {id(owner) for owner in self.coming.values()} <= {id(s) for s in self.running}:
            raise AssertionError("blocks are said to be coming from a sequence that does not run")

    def _wait(self, sequence: Sequence) -> None:
        sequence.phase = SequencePhase.WAITING
        insort(self.waiting, sequence, key=ORDER)
        self.adapters.wait(sequence)
        if self.adapters.admits(sequence):
            insort(self.waiting_of.setdefault(sequence.party, []), sequence, key=ORDER)

    def _stop_waiting(self, sequence: Sequence) -> None:
        _remove(self.waiting, sequence)
        if self.urgent is sequence:
            self.urgent = None
        self.adapters.stop_waiting(sequence)
        if self.adapters.admits(sequence):
            self._remove_of_party(sequence)

    def _remove_of_party(self, sequence: Sequence) -> None:
        of_tenant = self.waiting_of[sequence.party]
        _remove(of_tenant, sequence)
        if not of_tenant:
            del self.waiting_of[sequence.party]

    def _leave(self, sequence: Sequence) -> None:
        """Ends the running of a sequence: closes its table, and lets the next plan release it."""
        _remove(self.running, sequence)
        self.adapters.leave(sequence)
        self.running_of[sequence.party] -= 1
        if not self.running_of[sequence.party]:
            del self.running_of[sequence.party]
        for name in _uncomputed(sequence):
            if self.coming.get(name) is sequence:
                del self.coming[name]
        if sequence.fetching:
            self.fetches.abandon(sequence)
        else:
            self.blocks.release(sequence.seq_id)
        if sequence.announced:
            self.release.append(sequence.seq_id)
        sequence.announced = False
        sequence.computed = sequence.planned = sequence.capacity = sequence.seq_id = 0
        sequence.new_blocks = []

    def _out_of_order(self) -> bool:
        return any(a.order > b.order for queue in (self.running, self.waiting) for a, b in pairwise(queue))


def _uncomputed(sequence: Sequence) -> Iterator[bytes]:
    names = sequence.block_names
    return (names[index] for index in range(sequence.computed // BLOCK_SIZE, len(names)))


def _remove(queue: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(queue, sequence.order, key=ORDER)
    while queue[index] is not sequence:  # the choices of a request may share an order
        index += 1
    del queue[index]
