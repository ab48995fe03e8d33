"""The scheduler's guarantees, case by case; `test_worker_run_ahead.py` has random loads."""

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import SequencePhase
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled, StepPlan, StepResult
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import EOS, NAMES, build, compute, make, step


def test_a_prompt_is_computed_in_chunks_then_decoded() -> None:
    scheduler = build(budget=16)
    sequence = make("a", 40, 3)
    scheduler.add(sequence)
    plans = []
    while scheduler.has_work:
        plan = scheduler.plan()
        plans.append(plan)
        scheduler.apply(compute(plan))
    chunks = [(s.start, len(s.token_ids), s.sample) for plan in plans for s in plan.chunks]
    assert chunks == [(0, 16, False), (16, 16, False), (32, 8, True), (40, 1, True), (41, 1, True)]
    assert plans[0].admit[0].token_ids == list(range(100, 140))
    assert len(plans[0].chunks[0].new_blocks) == 3
    assert plans[-1].release == [1]
    assert sequence.num_output == 3
    assert scheduler.blocks.num_free == 64


def test_end_of_sequence_ends_unless_ignored() -> None:
    scheduler = build()
    heeding, ignoring = make("a", 3, 9), make("b", 3, 2, arrival=1)
    ignoring.sampling = EngineSampling(ignore_eos=True)
    scheduler.add(heeding)
    scheduler.add(ignoring)
    assert [a.finish_reason for a in step(scheduler, EOS)] == ["stop", None]
    assert [a.finish_reason for a in step(scheduler, EOS)] == ["length"]


def test_a_long_prompt_and_short_ones_both_get_on() -> None:
    scheduler = build(blocks=512, budget=32)
    long = make("long", 2000, 1)
    scheduler.add(long)
    step(scheduler)
    for number in range(3):
        scheduler.add(make(f"short{number}", 8, 1, arrival=1 + number))
    before = long.computed
    names = [a.sequence.request_id for _ in range(2) for a in step(scheduler)]
    assert names == ["short0", "short1", "short2"]
    assert long.computed - before >= 32


def test_priority_goes_before_arrival() -> None:
    scheduler = build(running=1)
    for sequence in (make("low", 4, 1), make("high", 4, 1, arrival=1, priority=5)):
        scheduler.add(sequence)
    assert [a.sequence.request_id for _ in range(3) for a in step(scheduler)] == ["high", "low"]


def test_short_memory_preempts_the_youngest_which_ends_later_all_the_same() -> None:
    scheduler = build(blocks=4, budget=64)
    old, young = make("old", 30, 20), make("young", 30, 20, arrival=1)
    scheduler.add(old)
    scheduler.add(young)
    done = [a.sequence.request_id for _ in range(60) for a in step(scheduler) if a.finish_reason]
    assert done == ["old", "young"]
    assert scheduler.num_preemptions == young.num_preemptions >= 1
    assert young.num_output == 20


def test_cancelled_anywhere_frees_at_once() -> None:
    scheduler = build(running=1)
    running, waiting = make("a", 20, 9), make("b", 4, 9, arrival=1)
    scheduler.add(running)
    scheduler.add(waiting)
    plan = scheduler.plan()
    for sequence in (running, waiting, running):
        scheduler.end(sequence)
    assert scheduler.blocks.num_free == 64
    assert scheduler.apply(compute(plan)) == []
    assert scheduler.plan().release == [1]
    assert not scheduler.has_work
    assert running.phase is waiting.phase is SequencePhase.ENDED


def test_deadlines_hold_for_waiting_and_running() -> None:
    scheduler = build(running=1)
    sequences = [
        make("a", 4, 99, deadline=5.0),
        make("b", 4, 9, arrival=1, deadline=6.0),
        make("c", 4, 9, arrival=2),
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    step(scheduler)
    assert scheduler.expire(4.9) == []
    for late, now in zip(sequences, (5.0, 6.0), strict=False):
        assert scheduler.expire(now) == [late]
        scheduler.end(late)
    assert scheduler.expire(7.0) == []


def test_slots_are_bounded() -> None:
    scheduler = build(running=2, waiting=1)
    for number in range(3):
        assert scheduler.num_free >= 1
        scheduler.add(make(str(number), 4, 1, arrival=number))
    assert scheduler.num_free == 0
    step(scheduler)
    assert scheduler.num_free == 2


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="token_budget"):
        scheduler_limits(8, 16, 4)
    with pytest.raises(ValueError, match="at least one KV block"):
        BlockManager(0)
    with pytest.raises(ValueError, match="never fit"):
        build(blocks=2).add(make("a", 32, 1))


def test_the_next_token_is_followed_before_it_is_known() -> None:
    scheduler = build(budget=64)
    sequence = make("a", 20, 3)
    scheduler.add(sequence)
    plans = [scheduler.plan(), scheduler.plan()]
    follow = plans[1].chunks[0]
    assert (follow.start, follow.token_ids, follow.follow, follow.sample) == (20, [], True, True)
    scheduler.apply(compute(plans[0], 11))
    plans.append(scheduler.plan())
    assert plans[2].chunks[0].start == 21
    scheduler.apply(compute(plans[1], 12))
    assert scheduler.plan().chunks == []  # its last token is in flight
    (last,) = scheduler.apply(compute(plans[2], 13))
    assert (last.finish_reason, sequence.tokens[20:]) == ("length", [11, 12, 13])
    assert scheduler.plan().release == [1]


def test_what_was_computed_past_an_end_is_dropped() -> None:
    scheduler = build()
    first, second = make("a", 5, 9), make("b", 5, 9, arrival=1)
    scheduler.add(first)
    scheduler.add(second)
    one, two = scheduler.plan(), scheduler.plan()
    scheduler.apply(compute(one, EOS))
    assert scheduler.blocks.num_free == 64
    assert scheduler.apply(compute(two)) == []
    assert (first.num_output, second.num_output) == (1, 1)
    scheduler.check_invariants()


def test_a_preempted_sequence_keeps_the_token_that_was_in_flight() -> None:
    scheduler = build(blocks=3, budget=64)
    old, young = make("old", 16, 30), make("young", 15, 30, arrival=1)
    scheduler.add(old)
    scheduler.add(young)
    first = scheduler.plan()
    second = scheduler.plan()  # `old` takes the last free block
    assert [piece.seq_id for piece in second.chunks] == [1, 2]
    scheduler.apply(compute(first))
    third = scheduler.plan()
    assert (third.release, [piece.seq_id for piece in third.chunks]) == ([2], [1])
    assert (young.phase, young.pending, young.num_output) == (SequencePhase.WAITING, 1, 1)
    scheduler.apply(compute(second, 5))
    assert (young.pending, young.num_output, young.tokens[-1]) == (0, 2, 5)
    scheduler.apply(compute(third))
    scheduler.check_invariants()


def test_one_sequence_s_failure_is_its_own_and_no_other_finds_its_blocks() -> None:
    scheduler = build(names=NAMES, budget=128)
    first, second = make("a", 40, 9), make("b", 10, 9, arrival=1)
    scheduler.add(first)
    scheduler.add(second)
    good = compute(scheduler.plan())
    bad = Sampled(seq_id=good.sampled[0].seq_id, token_id=0, error="no numbers")
    advances = scheduler.apply(StepResult(step_id=good.step_id, sampled=[bad, good.sampled[1]]))
    assert [(a.sequence.request_id, a.sampled.error) for a in advances] == [("a", "no numbers"), ("b", "")]
    assert (first.phase, first.num_output, second.num_output) == (SequencePhase.ENDED, 0, 1)
    again = make("c", 40, 9, arrival=2)
    scheduler.add(again)
    step(scheduler)
    assert again.cached_tokens == 0


def test_prompts_come_in_chunks_that_leave_decodes_their_pace() -> None:
    scheduler = Scheduler(BlockManager(512), scheduler_limits(512, 16, 64, itl_target_s=0.1))

    def run(plan: StepPlan) -> int:
        """Runs a step of 2 ms per token; returns its number of prompt tokens."""
        counts = [piece.num_tokens for piece in plan.chunks]
        result = compute(plan)
        scheduler.apply(StepResult(step_id=1, sampled=[]) if not counts else timed(result, sum(counts)))
        return sum(count for count in counts if count > 1)

    def timed(result: StepResult, num_tokens: int) -> StepResult:
        return StepResult(step_id=result.step_id, sampled=result.sampled, compute_s=0.002 * num_tokens)

    scheduler.add(make("alone", 600, 99))
    assert [run(scheduler.plan()) for _ in range(3)] == [512, 88, 0]  # no decode of another sequence to delay
    scheduler.add(make("long", 600, 1, arrival=1))
    chunks = [run(scheduler.plan()) for _ in range(4)]
    assert all(34 <= count <= 39 for count in chunks)  # of 100 ms, with a margin for what is not foreseen


def test_a_result_that_is_not_of_the_oldest_step_is_refused() -> None:
    scheduler = build()
    scheduler.add(make("a", 5, 9))
    plan = scheduler.plan()
    with pytest.raises(ValueError, match="step 1 is the oldest without result, this is step 7"):
        scheduler.apply(StepResult(step_id=7, sampled=[]))
    scheduler = build()
    scheduler.add(make("a", 5, 9))
    plan = scheduler.plan()
    with pytest.raises(ValueError, match="no token for sequence 1"):
        scheduler.apply(StepResult(step_id=plan.step_id, sampled=[]))


@pytest.mark.parametrize("damage", ["capacity", "pending", "planned", "phase", "order"])
def test_damage_is_seen(damage: str) -> None:
    scheduler = build()
    scheduler.add(make("a", 20, 9))
    scheduler.add(make("b", 20, 9, arrival=1))
    scheduler.plan()
    scheduler.check_invariants()
    sequence = scheduler.running[0]
    if damage == "phase":
        sequence.phase = SequencePhase.WAITING
    elif damage == "order":
        scheduler.running.reverse()
    else:
        setattr(sequence, damage, getattr(sequence, damage) + 1)
    with pytest.raises(AssertionError):
        scheduler.check_invariants()
