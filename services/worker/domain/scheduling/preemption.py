"""Preemption: running sequences give their blocks up, wait, and are computed again later.

Two cases: a decoding sequence needs a block and none is free, or a waiting sequence has a higher priority.
The last in order, by priority and then arrival, is preempted first.
"""

from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits, SequenceQueues
from services.worker.domain.scheduling.tenant_order import most_running
from services.worker.rank_protocol.plan import BLOCK_SIZE


class Preemption:
    """Takes blocks and running slots from sequences."""

    def __init__(self, queues: SequenceQueues, limits: SchedulerLimits, names: BlockNames) -> None:
        self._queues = queues
        self._limits = limits
        self._most = most_running(limits.max_running, limits.tenant_share)
        self._names = names

    def grow(self, sequence: Sequence, count: int = 1) -> bool:
        """Gives a running sequence blocks for `count` more tokens, at the expense of the last ones in order.

        Returns:
            False if the sequence itself was the last one, and was preempted.
        """
        queues = self._queues
        while (added := queues.blocks.append(sequence.seq_id, sequence.planned + count)) is None:
            # the blocks of one that waits for a fetch are not free before that is done
            victim = next(s for s in reversed(queues.running) if s is sequence or not s.fetching)
            queues.preempt(victim)
            if victim is sequence:
                return False
        sequence.capacity += BLOCK_SIZE * len(added)
        sequence.new_blocks += added
        return True

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
        """Preempts sequences of lower priority for the first waiting one, if that is enough to admit it."""
        queues = self._queues
        waiting, running, blocks = queues.waiting, queues.running, queues.blocks
        if not waiting or not running or waiting[0].priority <= running[-1].priority:
            return
        first = queues.first_admissible()
        if first is None or first.priority <= running[-1].priority:
            return
        names = self._names.to_find(first)
        if first.pending or queues.is_coming(first, names):
            return  # it could not come in now, and another sequence would take what is freed
        full_tenant = queues.running_of[first.party] >= self._most  # only its own can make way for it
        missing_slots = full_tenant or len(running) >= self._limits.max_running
        missing = blocks.cost(len(first.tokens), names) + queues.spare_blocks() - blocks.num_free
        victims: list[Sequence] = []
        for victim in reversed(running):
            if victim.priority >= first.priority or (missing <= 0 and len(victims) >= missing_slots):
                break
            if victim.fetching or (full_tenant and victim.party != first.party):
                continue  # fetching: its blocks would not be free before the fetch is done
            victims.append(victim)
            missing -= blocks.num_exclusive(victim.seq_id, len(first.tokens), names)
        if missing <= 0:
            for victim in victims:
                queues.preempt(victim)
