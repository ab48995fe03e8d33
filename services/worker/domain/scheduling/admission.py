"""Who may run: which waiting sequences get blocks and a place, and who gives way to a higher priority.

Admission is in order, tenants by turns (`tenant_turns.py`), and by blocks: a sequence gets those of all its
tokens at once, so only decodes ever run short. One whose beginning another sequence is computing just now
waits for that instead of doing it again.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable

from services.worker.domain.scheduling.block_names import BlockNames
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import ORDER, SchedulerLimits, SequenceQueues
from services.worker.domain.scheduling.tenant_turns import most_running, next_in_turn
from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_PREFILLS = 8  # prompts that may be in work at once, however long they are
MAX_HELD_BACK = 16  # sequences looked past in a step because their beginning is being computed


class Admission:
    """Moves sequences from the waiting to the running ones; counts what the prefix cache was good for.

    write_behind: knows what the store has. fetches: whether to fetch that many blocks
    and not compute them, when so many tokens are to be computed before.
    """

    def __init__(
        self,
        queues: SequenceQueues,
        limits: SchedulerLimits,
        names: BlockNames,
        write_behind: WriteBehind,
        fetches: Callable[[int, int], bool],
    ) -> None:
        self._queues = queues
        self._limits = limits
        self._most = most_running(limits.max_running, limits.tenant_share)
        self._names = names
        self._write_behind = write_behind
        self._fetches = fetches
        self._counts = (0, 0)

    def take_counts(self) -> tuple[int, int]:
        """Tokens looked up and tokens found since the last call; only first admissions of sequences count."""
        counts, self._counts = self._counts, (0, 0)
        return counts

    def make_way(self) -> None:
        """Lets the first in order have the place or the blocks of sequences of lower priority.

        Only if that is enough for it; the last in order give way first.
        """
        queues = self._queues
        waiting, running, blocks = queues.waiting, queues.running, queues.blocks
        if not waiting or not running or waiting[0].priority <= running[-1].priority:
            return
        first, names = waiting[0], self._names.of(waiting[0])
        if first.pending or self._is_coming(first, names):
            return  # it could not come in now, and somebody else would take what is freed
        full_tenant = queues.running_of[first.tenant] >= self._most  # only its own can make way for it
        short_of_places = full_tenant or len(running) >= self._limits.max_running
        missing = blocks.cost(len(first.tokens), names) + self._spare() - blocks.num_free
        victims: list[Sequence] = []
        for victim in reversed(running):
            if victim.priority >= first.priority or (missing <= 0 and len(victims) >= short_of_places):
                break
            if victim.fetching or (full_tenant and victim.tenant != first.tenant):
                continue  # fetching: its blocks would not be free before the fetch is done
            victims.append(victim)
            missing -= blocks.num_exclusive(victim.seq_id, len(first.tokens), names)
        if missing <= 0:
            for victim in victims:
                queues.preempt(victim)

    def admit(self, prefilling: list[Sequence], rest: int) -> None:
        """Admits sequences while there are places, blocks and budget; adds them to `prefilling`.

        rest: tokens of this step that are left for prompts. A few blocks stay free for those that decode.
        """
        queues = self._queues
        if not queues.waiting:
            return
        passed = Counter[str]()
        ahead = sum(s.remaining for s in prefilling)
        demand = sum(min(s.remaining, rest // 2) for s in prefilling)
        while passed.total() < MAX_HELD_BACK and len(queues.running) < self._limits.max_running:
            sequence = next_in_turn(queues.waiting_of, queues.running_of, passed, self._most)
            if sequence is None or sequence.pending:
                break  # pending: it was preempted a moment ago, and the step that runs brings its next token
            names = self._names.of(sequence)
            enough = demand >= rest and (len(prefilling) >= MIN_PREFILLS or rest < 1)
            if enough and not self._to_fetch(sequence, names, queues.blocks.num_found(names), ahead):
                break  # who fetches takes nothing of this step
            if self._is_coming(sequence, names):
                passed[sequence.tenant] += 1
                continue
            if not queues.enter(sequence, names, self._spare()):
                break
            self._count(sequence)
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

    def _to_fetch(self, sequence: Sequence, names: list[bytes], found: int, ahead: int) -> int:
        """Up to which block to fetch for a sequence whose first `found` blocks are here; 0: nothing."""
        if sequence.stored < 0 or not self._write_behind.enabled:
            return 0
        last = (len(sequence.tokens) - 1) // BLOCK_SIZE
        stored = min(last, max(sequence.stored, self._write_behind.num_known_of(names)))
        stored = self._write_behind.num_trusted_of(names[:stored])
        if stored <= found or not (sequence.always_fetch or self._fetches(stored - found, ahead)):
            return 0
        return stored

    def _is_coming(self, sequence: Sequence, names: list[bytes]) -> bool:
        """Whether the first block that it would compute is about to be computed by one before it in order."""
        queues = self._queues
        if not queues.coming:
            return False
        for name in names[: (len(sequence.tokens) - 1) // BLOCK_SIZE]:
            if not queues.blocks.is_cached(name):
                owner = queues.coming.get(name)
                return owner is not None and owner.order <= sequence.order
        return False

    def _count(self, sequence: Sequence) -> None:
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.computed
            queried, cached = self._counts
            self._counts = queried + len(sequence.tokens), cached + sequence.computed

    def _spare(self) -> int:
        return min(len(self._queues.running), self._queues.blocks.num_blocks // 32)
