"""Preemption: running sequences give their blocks up, wait, and are computed again later.

Two cases: a decoding sequence needs a block and none is free, or a waiting sequence has a higher priority
than others of its party, or than background work. Of the party with the least credit (`fairness/`) the last
in order, by priority and then arrival, is preempted first.
"""

from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits, SequenceQueues
from services.worker.rank_protocol.plan import BLOCK_SIZE


class Preemption:
    """Takes blocks and running slots from sequences."""

    def __init__(self, queues: SequenceQueues, limits: SchedulerLimits, names: BlockNames) -> None:
        self._queues = queues
        self._limits = limits
        self._names = names

    def grow(self, sequence: Sequence, count: int = 1) -> bool:
        """Gives a running sequence blocks for `count` more tokens, at the expense of the last ones in order.

        Returns:
            False if the sequence itself was the last one, and was preempted.
        """
        queues = self._queues
        while (added := queues.blocks.append(sequence.seq_id, sequence.planned + count)) is None:
            victim = self._victim(sequence)
            queues.preempt(victim)
            if victim is sequence:
                return False
        sequence.capacity += BLOCK_SIZE * len(added)
        sequence.new_blocks += added
        return True

    def within_blocks(self, sequence: Sequence, count: int) -> int:
        """Returns how many of the next `count` tokens have blocks; those of a run get free ones."""
        if self.grow_freely(sequence, count):
            return count
        return min(count, sequence.capacity - sequence.planned)

    def grow_freely(self, sequence: Sequence, count: int) -> bool:
        """Gives a sequence blocks for `count` more tokens, unless another one may need them soon.

        Returns:
            Whether it has blocks for so many tokens.
        """
        end = sequence.planned + count
        if end <= sequence.capacity:
            return True
        blocks, wanted = self._queues.blocks, -(-(end - sequence.capacity) // BLOCK_SIZE)
        spare = wanted + len(self._queues.running)  # each may need one block for its next token
        return blocks.num_free >= spare and self.grow(sequence, count)

    def make_room(self) -> None:
        """Preempts sequences of lower priority for a waiting one, if that is enough to admit it.

        They are of its party, or background work. It is admitted before all others then.
        """
        queues = self._queues
        waiting, running = queues.waiting, queues.running
        if not waiting or not running or waiting[0].priority <= running[-1].priority:
            return
        heads = [queue[0] for queue in queues.waiting_of.values()]
        if len(heads) > 1:
            heads.sort(key=self._rank)
        for first in heads:
            if first.priority > running[-1].priority and self._make_room_for(first):
                queues.urgent = first
                return

    def _rank(self, sequence: Sequence) -> tuple[bool, float, tuple[int, int]]:
        """Sorts sequences of different parties: the least goes first."""
        credit = self._queues.fair.of(sequence).credit(sequence.party)
        return is_background(sequence), -credit, sequence.order

    def _make_room_for(self, first: Sequence) -> bool:
        """Preempts sequences for a waiting one; returns whether there was any need and enough of them."""
        queues = self._queues
        running, blocks = queues.running, queues.blocks
        if not any(self._gives_way(one, first) for one in running):
            return False
        names = self._names.to_find(first)
        if first.pending or queues.is_coming(first, names):
            return False  # it could not come in now, and another sequence would take what is freed
        # only its own can make way for it
        full_tenant = queues.running_of[first.party] >= queues.fair.slots.most
        missing_slots = full_tenant or len(running) >= self._limits.max_running
        missing = blocks.cost(len(first.tokens), names) + queues.spare_blocks() - blocks.num_free
        victims: list[Sequence] = []
        for victim in reversed(running):
            if victim.priority >= first.priority or (missing <= 0 and len(victims) >= missing_slots):
                break
            if not self._gives_way(victim, first) or (full_tenant and victim.party != first.party):
                continue
            victims.append(victim)
            missing -= blocks.num_exclusive(victim.seq_id, len(first.tokens), names)
        if missing > 0 or len(victims) < missing_slots:
            return False
        for victim in victims:
            queues.preempt(victim)
        return bool(victims)

    def _gives_way(self, victim: Sequence, first: Sequence) -> bool:
        """Returns whether a running sequence may be preempted for a waiting one."""
        if victim.priority >= first.priority or victim.fetching:
            return False  # fetching: its blocks would not be free before the fetch is done
        of_class = victim.party == first.party or is_background(victim)
        return of_class and victim is not self._queues.fair.floor.leased

    def _victim(self, sequence: Sequence) -> Sequence:
        """Returns which running sequence gives its blocks to one that needs some; it may be that one itself.

        None before it in order: these are planned already.
        """
        queues = self._queues
        fair = queues.fair
        best = sequence
        least = 0.0
        found = False
        for one in reversed(queues.running):
            # the blocks of one that waits for a fetch are not free before that is done
            if one is sequence or not (one.fetching or one is fair.floor.leased):
                if not fair.has_several or is_background(one):
                    return one
                credit = fair.of(one).credit(one.party)
                if not found or credit < least:
                    best, least, found = one, credit, True
            if one is sequence:
                break
        return best
