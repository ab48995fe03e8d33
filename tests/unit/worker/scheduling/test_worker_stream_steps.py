"""Steps that bring what has arrived: each sequence gets exactly its tokens, whatever comes when.

Groups are schedulers, each with sequences that generate on their own. Their tokens arrive in any order and in
bursts; sequences are cancelled, end with errors and go on at another group; groups lose their engines.
"""

import random
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.scheduler import Advance, Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, Sampled, StepPlan, StepResult
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


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(8, 40), count=st.integers(1, 25))
def test_everybody_gets_the_tokens_of_an_undisturbed_run(seed: int, num_blocks: int, count: int) -> None:
    fleet = Fleet(random.Random(seed), num_blocks, count)
    fleet.run()
    assert fleet.outputs.keys() | fleet.cancelled == fleet.expected.keys()
    assert fleet.outputs == {name: fleet.expected[name] for name in fleet.outputs}
    for group in fleet.groups:
        assert (group.scheduler.blocks.num_used, group.open) == (0, {})


def running(prompt: int = 20, output: int = 10, **options: int) -> tuple[Group, Sequence]:
    """A group whose only sequence waits for its first token."""
    group, one = Group(16, **options), make("r", prompt, output)
    group.scheduler.add(one)
    assert group.submit()
    return group, one


def test_a_chunk_without_a_token_is_booked_back_and_planned_again() -> None:
    group, one = running()
    assert group.end_step() == []
    assert (one.computed, one.planned, one.pending, one.remaining) == (19, 19, 0, 1)
    for _ in range(3):
        assert group.submit()
        assert group.plan is not None
        assert [(c.start, c.token_ids, c.sample) for c in group.plan.chunks] == [(19, one.tokens[19:], True)]
        assert group.end_step() == []
        assert (one.computed, one.planned, one.pending) == (19, 19, 0)
    group.bring(1, 2)
    for number in (1, 2):
        assert group.submit()
        assert len(group.end_step()) == 1
        assert (one.num_output, one.computed) == (number, 19 + number)


def test_an_error_behind_tokens_comes_after_them() -> None:
    group, one = running()
    group.bring(1, 1)
    group.fail(1)
    assert [a.sampled.error for a in group.end_step()] == [""]
    assert group.submit()
    (last,) = group.end_step()
    assert (last.sampled.error, last.sampled.cause, one.num_output) == (GUEST, "guest", 1)
    assert one.phase is SequencePhase.ENDED
    assert not group.scheduler.running


def test_a_sequence_that_ends_while_its_step_waits_is_released_with_the_next_plan() -> None:
    group, one = running()
    group.scheduler.end(one)
    group.bring(1, 1)  # it arrived a moment before
    assert group.end_step() == []
    assert group.submit()
    assert group.plan is not None
    assert (group.plan.release, group.plan.chunks) == ([1], [])
    assert group.end_step() == []
    assert not group.scheduler.has_work


def test_a_sequence_that_is_preempted_is_given_to_the_engine_with_all_its_tokens() -> None:
    group, one = running()
    group.bring(1, 3)
    for _ in range(2):
        group.end_step()
        group.submit()
    group.scheduler.queues.preempt(one)
    assert len(group.end_step()) == 1  # its token had arrived
    assert one.num_output == 3
    assert group.submit()
    assert group.plan is not None
    (again,) = group.plan.admit
    assert (group.plan.release, again.seq_id, again.token_ids) == ([1], 2, one.tokens)
    assert (again.prompt_len, again.max_tokens) == (20, 7)
    assert group.end_step() == []  # preempted or not, nothing has arrived of it


def test_a_token_that_is_late_does_not_come_to_a_sequence_that_was_preempted_meanwhile() -> None:
    group, one = running()
    group.scheduler.queues.preempt(one)
    assert group.end_step() == []
    assert (one.pending, one.planned, one.computed, one.phase) == (0, 0, 0, SequencePhase.WAITING)


@pytest.mark.parametrize("seq_ids", [[1, 1], [2], [1, 2]])
def test_a_result_with_tokens_that_were_not_asked_for_is_a_bug(seq_ids: list[int]) -> None:
    group, _ = running()
    assert group.plan is not None
    sampled = [Sampled(seq_id=seq_id, token_id=1) for seq_id in seq_ids]
    with pytest.raises(ValueError, match="asked for"):
        group.scheduler.apply(StepResult(step_id=group.plan.step_id, sampled=sampled))


def test_prompts_are_whole_beside_decodes_whatever_the_target_and_the_budget() -> None:
    group, _ = running(itl_target_s=0.001)
    group.bring(1, 1)
    group.end_step()
    group.scheduler.add(make("long", 150, 5))  # the budget is 64 tokens
    assert group.submit()
    assert group.plan is not None
    assert [chunk.num_tokens for chunk in group.plan.chunks] == [1, 150]
    assert group.scheduler.throttle.num_cuts == 0


def test_steps_teach_nothing_about_times() -> None:
    group, _ = running(itl_target_s=0.01)
    before = group.scheduler.costs.rates()
    for _ in range(30):
        group.bring(1, 1)
        assert group.plan is not None
        sampled = [group.arrived[1].popleft()]
        result = StepResult(step_id=group.plan.step_id, sampled=sampled, compute_s=3.0)
        group.scheduler.apply(result, 3.0)
        group.plan = None
        if not group.submit():
            break
    assert group.scheduler.costs.rates() == before
    assert group.scheduler.throttle.pace.decode_tokens(1) == Group(16).scheduler.throttle.pace.decode_tokens(
        1
    )


def test_parties_are_charged_for_what_has_arrived() -> None:
    group = Group(64)
    for name, party in (("a", "a"), ("b", "b")):
        one = make(name, 2 * BLOCK_SIZE, 50)
        one.party = party
        group.scheduler.add(one)
    fair = group.scheduler.queues.fair
    deficits = fair.of(group.scheduler.waiting[0])
    group.submit()
    group.end_step()
    assert deficits.charged("a") == deficits.charged("b") == 2 * BLOCK_SIZE - 1
    for _ in range(10):  # of a alone something comes
        group.submit()
        group.bring(1, 1)
        group.end_step()
    assert deficits.charged("b") == 2 * BLOCK_SIZE - 1
    assert deficits.charged("a") > 2 * BLOCK_SIZE + 9


def test_suspects_run_beside_the_others() -> None:
    group, _ = running()
    suspect = make("suspect", 5, 10)
    suspect.trial_tokens = TRIAL_TOKENS
    group.scheduler.add(suspect)
    group.end_step()
    assert group.submit()
    assert group.plan is not None
    assert len(group.plan.chunks) == 2
    assert not group.scheduler.trials.sequences
