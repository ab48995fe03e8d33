"""Sequences under grammars: masks that come late, forced tokens, and answers that depend on nothing else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.constraints.forced_tokens import force_first
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.step_masks import StepMasks, mask_of
from tests.kits.engine.hash_engine import EOS, VOCAB, HashEngine, mix, sample
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run
from tests.kits.worker.toy_constraint import ToyConstraint


def make(
    name: str, prompt: list[int], max_tokens: int, grammar: ToyConstraint | None, logprobs: int = -1
) -> Sequence:
    return Sequence(
        request_id=name,
        choice=0,
        tokens=prompt.copy(),
        prompt_len=len(prompt),
        max_tokens=max_tokens,
        sampling=EngineSampling(logprobs=logprobs),
        eos_ids=frozenset([EOS]),
        constraint=grammar,
    )


def alone(prompt: list[int], max_tokens: int, grammar: ToyConstraint | None) -> Output:
    """The expected output: token by token, each under a mask, a forced one under its own."""
    state, output, forced = 0, list[int](), list[int]()
    for token_id in prompt:
        state = mix(state, token_id)
    while len(output) < max_tokens:
        mask = b""
        if grammar is not None:
            forced = forced or grammar.forced()
            mask = mask_of(forced[0]) if forced else grammar.mask() or b""
        one = sample(state, 0, mask)
        if one.error:
            return output, "error"
        output.append(one.token_id)
        if one.token_id == EOS:
            return output, "stop"
        forced = forced[1:]
        state = mix(state, one.token_id)
        if grammar is not None:
            grammar.accept([one.token_id])
    return output, "length"


def no_errors(prompt: list[int], output: Output) -> bool:
    """Whether the hash engine has no error for any place of an answer, forced ones included."""
    state, every = 0, [*prompt, *output[0]]
    for index, token_id in enumerate(every, 1):
        state = mix(state, token_id)
        if index >= len(prompt) and sample(state, 0).error:
            return False
    return output[1] != "error"


def a_run(
    engine: HashEngine,
    budget: int,
    run_ahead: int,
    running: int = 8,
    costs: TransferCostModel | None = None,
) -> Run:
    limits = scheduler_limits(budget, min(budget, running), 1000)
    scheduler = Scheduler(BlockManager(len(engine.blocks)), limits, BlockNames("f"), costs=costs)

    def supply(masks: StepMasks) -> None:
        engine.masks[masks.step_id] = masks.masks

    return Run(scheduler, engine.compute, run_ahead, supply=supply)


def add(run: Run, sequence: Sequence, arrival: int) -> None:
    sequence.append_run(force_first(sequence))
    sequence.enqueued_as(arrival)
    run.scheduler.add(sequence)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(6, 40),
    budget=st.integers(4, 48),
    run_ahead=st.integers(0, 1),
)
def test_every_answer_is_that_of_an_undisturbed_run(
    *, seed: int, num_blocks: int, budget: int, run_ahead: int
) -> None:
    chance = random.Random(seed)
    engine = HashEngine(num_blocks)
    run = a_run(engine, budget, run_ahead)
    coming, expected = list[Sequence](), dict[str, Output]()
    for number in range(chance.randint(1, 20)):
        prompt = [chance.randint(1, 3) for _ in range(chance.randint(1, 60))]
        max_tokens, grammar_seed = chance.randint(1, 60), chance.randint(0, 10**6)
        longest = chance.choice([0, 5, 20])

        def grammar(seed: int = grammar_seed, longest: int = longest) -> ToyConstraint | None:
            return None if seed % 4 == 0 else ToyConstraint(VOCAB, [EOS], seed, longest=longest)

        output = alone(prompt, max_tokens, grammar())
        if blocks_for(len(prompt) + max_tokens) > num_blocks or not no_errors(prompt, output):
            continue
        sequence = make(str(number), prompt, max_tokens, grammar(), chance.choice([-1, -1, 0]))
        sequence.append_run(force_first(sequence))
        if sequence.end_reason() is not None:
            assert sequence.tokens[len(prompt) :] == output[0]
            continue
        sequence.enqueued_as(number)
        coming.append(sequence)
        expected[sequence.request_id] = output
    run.run_with_cancels(coming, expected, chance, cancelled_share=0.03)
    assert (run.scheduler.blocks.num_free, engine.num_known) == (num_blocks, 0)


class Run5(ToyConstraint):
    """Forces five tokens after each free one."""

    def _draw(self) -> None:
        super()._draw()
        position = len(self.accepted) % 6
        self._free, self._allowed = False, {1, 2}
        self._forced = [11, 12, 13, 14, 15] if position == 1 else []


@pytest.mark.parametrize(("run_ahead", "steps"), [(0, 5), (1, 9)])
def test_a_forced_run_is_computed_as_one_chunk(run_ahead: int, steps: int) -> None:
    engine = HashEngine(16)
    run = a_run(engine, 32, run_ahead)
    add(run, make("a", [5, 6, 7], 25, Run5(VOCAB, [EOS], 1)), 0)
    run.finish()
    output, reason = run.outputs["a"]
    assert reason == "length"
    assert [token for index, token in enumerate(output) if index % 6] == [11, 12, 13, 14, 15] * 4
    assert set(output[::6]) <= {1, 2}
    plans = [plan for plan in run.plans if plan.chunks]
    assert len(plans) == steps
    assert any(piece.follow and piece.masked for plan in plans for piece in plan.chunks) == bool(run_ahead)


def test_with_log_probabilities_each_forced_token_is_sampled() -> None:
    engine = HashEngine(16)
    run = a_run(engine, 32, 1)
    add(run, make("a", [5, 6, 7], 25, Run5(VOCAB, [EOS], 1), logprobs=0), 0)
    run.finish()
    other = a_run(HashEngine(16), 32, 1)
    add(other, make("a", [5, 6, 7], 25, Run5(VOCAB, [EOS], 1)), 0)
    other.finish()
    assert run.outputs == other.outputs
    assert sum(piece.sample for plan in run.plans for piece in plan.chunks) == 25


def test_a_run_takes_no_more_than_the_budget_and_delays_no_other_decode() -> None:
    class Long(Run5):
        def _draw(self) -> None:
            super()._draw()
            self._forced = [3] * 40 if len(self.accepted) == 2 else []

    engine = HashEngine(32)
    run = a_run(engine, 12, 0, running=4)
    add(run, make("run", [9, 6], 60, Long(VOCAB, [EOS], 1)), 0)
    for number in range(3):
        add(
            run,
            make(str(number), [9, 9, number + 1], 30, ToyConstraint(VOCAB, [], 7, forces=False)),
            1 + number,
        )
    run.finish()
    assert run.outputs["run"][0][2:42] == [3] * 40
    chunks = [[piece.num_tokens for piece in plan.chunks] for plan in run.plans if len(plan.chunks) == 4]
    assert [1, 1, 1, 9] in chunks


def test_short_memory_preempts_for_a_run() -> None:
    class Long(Run5):
        def _draw(self) -> None:
            super()._draw()
            self._forced = [3] * 30 if len(self.accepted) == 2 else []

    engine = HashEngine(6)
    run = a_run(engine, 64, 1)
    first, second = [5] * 20, [6] * 20
    for number, prompt in enumerate((first, second)):
        add(run, make(str(number), prompt, 50, Long(VOCAB, [EOS], 1)), number)
    run.finish()
    assert run.scheduler.num_preemptions > 0
    for number, prompt in enumerate((first, second)):
        assert run.outputs[str(number)] == alone(prompt, 50, Long(VOCAB, [EOS], 1))


def test_a_grammar_that_fails_ends_its_sequence_only() -> None:
    class Broken(ToyConstraint):
        def accept(self, token_ids: object) -> None:
            raise RuntimeError("no state")

    engine = HashEngine(16)
    run = a_run(engine, 32, 1)
    add(run, make("broken", [5, 6], 9, Broken(VOCAB, [EOS], 1, forces=False)), 0)
    add(run, make("sound", [5, 6, 1], 9, None), 1)
    run.finish()
    assert run.outputs["broken"][1] == "error"
    assert run.outputs["sound"] == alone([5, 6, 1], 9, None)


def test_the_masks_of_a_step_come_when_the_tokens_before_it_are_known() -> None:
    scheduler = Scheduler(BlockManager(16), scheduler_limits(32, 4, 8))
    engine, grammar = HashEngine(16), ToyConstraint(VOCAB, [], 3, forces=False)
    sequence = make("a", [5, 6], 9, grammar)
    scheduler.add(sequence)

    def compute(plan: StepPlan, masks: list[StepMasks]) -> StepResult:
        engine.masks |= {one.step_id: one.masks for one in masks}
        return engine.compute(plan)

    first = scheduler.plan()
    given = scheduler.take_masks()
    assert [one.step_id for one in given] == [first.step_id]
    second = scheduler.plan()
    assert [(piece.follow, piece.masked) for piece in second.chunks] == [(True, True)]
    assert scheduler.take_masks() == []
    scheduler.apply(compute(first, given))
    scheduler.end(sequence)
    # nothing may wait for masks in vain: a sequence that has ended meanwhile gets one that allows all
    assert scheduler.take_masks() == [StepMasks(step_id=second.step_id, masks=[b""])]
    assert scheduler.take_masks() == []


@pytest.mark.parametrize(("eos_ids", "plans"), [([EOS], 3), ([EOS, 49], 4)])
def test_the_only_end_is_not_sampled_and_of_several_the_model_chooses(eos_ids: list[int], plans: int) -> None:
    class Short(ToyConstraint):
        def _draw(self) -> None:
            super()._draw()
            self._free, self._forced = False, []
            self._allowed = set(eos_ids) if len(self.accepted) == 3 else {1, 2}

    run = a_run(HashEngine(16), 32, 0)
    sequence = make("a", [5, 6, 7], 25, Short(VOCAB, eos_ids, 1))
    sequence.eos_ids = frozenset(eos_ids)
    add(run, sequence, 0)
    run.finish()
    output, reason = run.outputs["a"]
    assert (len(output), output[-1] in eos_ids, reason) == (4, True, "stop")
    assert len([plan for plan in run.plans if plan.chunks]) == plans


@pytest.mark.sources
def test_forced_tokens_do_not_count_as_prompts_in_the_measured_costs() -> None:
    class Costs(TransferCostModel):
        def computed(self, num_tokens: int, compute_s: float) -> None:
            seen.append(num_tokens)

    seen: list[int] = []
    engine = HashEngine(16)
    run = a_run(engine, 32, 0, costs=Costs(32))
    add(run, make("a", [5, 6, 7], 25, Run5(VOCAB, [EOS], 1)), 0)
    run.finish()
    assert seen == [3]


def test_stop_tokens_end_as_the_end_of_sequence_does() -> None:
    sequence = make("a", [5], 9, None)
    sequence.sampling = EngineSampling(stop_token_ids=[8], ignore_eos=True)
    assert [sequence.take(token) for token in (EOS, 7, 8)] == [None, None, "stop"]
