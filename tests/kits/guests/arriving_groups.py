"""Groups whose sequences generate on their own, and a fleet of them: tokens arrive when the test says so."""

import random
from collections import deque
from collections.abc import Iterator

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.scheduler import Advance, Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import NewSequence, Sampled, StepPlan, StepResult
from tests.kits.engine.hash_engine import EOS, alone, mix, sample
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import make

GUEST = "the guest lost it"


def answer_of(new: NewSequence) -> Iterator[Sampled]:
    """The tokens of a sequence on and on, as `hash_engine.alone` says."""
    state = 0
    for token_id in new.token_ids:
        state = mix(state, token_id)
    while True:
        one = sample(state, new.choice)
        yield Sampled(seq_id=new.seq_id, token_id=one.token_id, error=one.error)
        state = mix(state, one.token_id)


class Group:
    """A scheduler and its engine, whose tokens arrive when the test says so."""

    def __init__(self, num_blocks: int, *, max_running: int = 8, itl_target_s: float = 0.0) -> None:
        limits = scheduler_limits(64, max_running, 1000, itl_target_s)
        self.scheduler = Scheduler(
            BlockManager(num_blocks), limits, BlockNames("f", sharing="off"), streams=True
        )
        self.plan: StepPlan | None = None
        self.open: dict[int, tuple[NewSequence, Iterator[Sampled]]] = {}
        self.arrived: dict[int, deque[Sampled]] = {}

    def submit(self) -> bool:
        """Plans a step, which waits then; False if there is nothing to do."""
        assert self.plan is None
        plan = self.scheduler.plan()
        self.scheduler.check_invariants()
        if plan.is_empty:
            return False
        for seq_id in plan.release:
            del self.open[seq_id], self.arrived[seq_id]
        for new in plan.admit:
            self.open[new.seq_id] = new, answer_of(new)
            self.arrived[new.seq_id] = deque()
        assert [chunk.seq_id for chunk in plan.chunks] == sorted(
            {chunk.seq_id for chunk in plan.chunks}, key=[c.seq_id for c in plan.chunks].index
        )
        assert {chunk.seq_id for chunk in plan.chunks} == self.open.keys()  # none is left out
        assert all(chunk.sample for chunk in plan.chunks)
        self.plan = plan
        return True

    def bring(self, seq_id: int, count: int) -> None:
        """Lets tokens of a sequence arrive."""
        if not (self.arrived[seq_id] and self.arrived[seq_id][-1].error):
            for _, one in zip(range(count), self.open[seq_id][1], strict=False):
                self.arrived[seq_id].append(one)
                if one.error:
                    break

    def fail(self, seq_id: int) -> None:
        """Ends a sequence with an error of the guest, behind what has arrived."""
        self.arrived[seq_id].append(Sampled(seq_id=seq_id, token_id=0, error=GUEST, cause="guest"))

    def end_step(self) -> list[Advance]:
        """Ends the step with what has arrived, and books it."""
        plan, self.plan = self.plan, None
        assert plan is not None
        sampled = [
            self.arrived[chunk.seq_id].popleft() for chunk in plan.chunks if self.arrived[chunk.seq_id]
        ]
        advances = self.scheduler.apply(StepResult(step_id=plan.step_id, sampled=sampled))
        self.scheduler.check_invariants()
        return advances


class Fleet:
    """Groups, and requests that go on at another group with the tokens that they have."""

    def __init__(self, chance: random.Random, num_blocks: int, count: int) -> None:
        self.chance = chance
        self.num_blocks = num_blocks
        self.groups = [self._group() for _ in range(2)]
        self.coming: list[Sequence] = []
        self.expected: dict[str, tuple[list[int], str]] = {}
        self.outputs: dict[str, tuple[list[int], str]] = {}
        self.cancelled = set[str]()
        self.moves = 0
        for number in range(count):
            prompt = [chance.randint(1, 40) for _ in range(chance.randint(1, 70))]
            max_tokens = chance.randint(1, 40)
            if blocks_for(len(prompt) + max_tokens) <= num_blocks:
                name, choice = str(number), chance.choice([0, 0, 1, 2])
                one = make(name, len(prompt), max_tokens, priority=chance.choice([0, 0, 1, -100]))
                one.tokens, one.choice, one.tenant = prompt.copy(), choice, chance.choice("ab")
                one.party, one.eos_ids = one.tenant, frozenset([EOS])
                one.enqueued_as(number)
                self.coming.append(one)
                self.expected[name] = alone(prompt, max_tokens, choice)

    def _group(self) -> Group:
        return Group(self.num_blocks, max_running=self.chance.randint(1, 8))

    def move(self, group: Group, sequence: Sequence) -> None:
        """Lets a request go on elsewhere, as its client does."""
        self.moves += 1
        group.scheduler.end(sequence)
        again = make(sequence.request_id, 1, sequence.max_tokens, priority=sequence.priority)
        again.tokens, again.prompt_len = sequence.tokens.copy(), sequence.prompt_len
        again.choice, again.tenant, again.party = sequence.choice, sequence.tenant, sequence.party
        again.eos_ids = sequence.eos_ids
        again.enqueued_as(10_000 + self.moves, first=True)
        next(one for one in self.groups if one is not group).scheduler.add(again)

    def book(self, group: Group, advances: list[Advance]) -> None:
        for one in advances:
            sequence = one.sequence
            output = sequence.tokens[sequence.prompt_len :]
            if one.sampled.error and one.sampled.cause == "guest":
                self.move(group, sequence)
            elif one.sampled.error or one.finish_reason:
                assert sequence.request_id not in self.outputs
                self.outputs[sequence.request_id] = output, one.finish_reason or "error"

    def disturb(self, group: Group) -> None:
        chance, scheduler = self.chance, group.scheduler
        for seq_id in chance.sample(sorted(group.open), chance.randint(0, len(group.open))):
            group.bring(seq_id, chance.choice([1, 1, 1, 2, 7]))
        if chance.random() < 0.03 and group.open:
            group.fail(chance.choice(sorted(group.open)))
        if chance.random() < 0.03 and (alive := scheduler.running + scheduler.waiting):
            victim = chance.choice(alive)
            scheduler.end(victim)
            self.cancelled.add(victim.request_id)
        if chance.random() < 0.05:
            scheduler.blocks.set_limit(chance.choice([self.num_blocks, chance.randint(1, self.num_blocks)]))
        scheduler.check_invariants()

    def lose(self, group: Group) -> None:
        """A group's engine is gone, and comes back."""
        alive = group.scheduler.running + group.scheduler.waiting
        for sequence in alive:
            self.move(group, sequence)
        self.groups[self.groups.index(group)] = self._group()

    def run(self) -> None:
        chance = self.chance
        for _ in range(20_000):
            group = chance.choice(self.groups)
            if self.coming and chance.random() < 0.4:
                group.scheduler.add(self.coming.pop(0))
            if group.plan is None:
                group.submit()
            self.disturb(group)
            if group.plan is not None and chance.random() < 0.7:
                self.book(group, group.end_step())
            if chance.random() < 0.004:
                self.lose(group)
            if not self.coming and not any(one.plan or one.scheduler.has_work for one in self.groups):
                return
        raise AssertionError("it does not come to an end")
