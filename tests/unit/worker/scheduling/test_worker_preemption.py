"""Which sequences give way to others for slots and blocks, and which wait for a shared beginning."""

from collections import deque

import pytest

from services.worker.rank_protocol.plan import StepPlan
from tests.kits.worker.scheduler import NAMES, build, compute, make, step


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_beginning_is_computed_once_for_all_that_come_together(run_ahead: int) -> None:
    scheduler, plans = build(names=NAMES, budget=48, running=8), deque[StepPlan]()
    for choice in range(4):
        scheduler.add(make(str(choice), 100, 2, arrival=choice))
    other = make("other", 5, 2, arrival=9)
    scheduler.add(other)
    num_prompt_tokens = 0
    while scheduler.has_work or plans:
        plan = scheduler.plan()
        if plan.chunks or plan.release:
            plans.append(plan)
            num_prompt_tokens += sum(p.num_tokens for p in plan.chunks if p.num_tokens > 1)
        if len(plans) > run_ahead or not plan.chunks:
            scheduler.apply(compute(plans.popleft()))
        scheduler.check_invariants()
        if len(plans) == 1 and plan.step_id == 1:
            assert plan.admit[-1].token_ids == other.tokens[:5]  # it shares no prefix, so it does not wait
    # 6 full blocks once, the last 4 tokens of each of 4 prompts, and the 5 tokens of `other`
    assert num_prompt_tokens == 96 + 4 * 4 + 5
    assert scheduler.admission.take_counts() == (405, 3 * 96)


def test_a_beginning_is_not_waited_for_behind_a_lower_priority() -> None:
    scheduler = build(names=NAMES, budget=32)
    scheduler.add(make("low", 100, 1, priority=-1))
    step(scheduler)
    scheduler.add(make("high", 100, 1, arrival=1, priority=1))
    scheduler.add(make("same", 100, 1, arrival=2, priority=-1))
    plan = scheduler.plan()
    assert [new.seq_id for new in plan.admit] == [2]
    assert [s.request_id for s in scheduler.waiting] == ["same"]


def test_a_higher_priority_takes_a_slot_or_blocks_and_lower_ones_come_back() -> None:
    for scheduler in (build(running=2), build(blocks=6, budget=64)):
        names = ["low0", "low1"]
        low = [make(name, 30, 4, arrival=number) for number, name in enumerate(names)]
        for sequence in low:
            scheduler.add(sequence)
        step(scheduler)
        scheduler.add(make("high", 40, 4, arrival=9, priority=1))
        order = [a.sequence.request_id for _ in range(40) for a in step(scheduler) if a.finish_reason]
        assert order in (["low0", "high", "low1"], ["high", "low0", "low1"])
        assert (low[0].num_preemptions, low[1].num_preemptions) == (0, 1)


def test_no_sequence_gives_way_to_one_that_waits_for_its_beginning() -> None:
    scheduler = build(names=NAMES, budget=16, running=2)
    scheduler.add(make("low", 4, 99))
    scheduler.add(make("high0", 64, 9, arrival=1, priority=1))
    step(scheduler)
    scheduler.add(make("high1", 64, 9, arrival=2, priority=1))
    preempted: list[int] = []
    while not preempted or not preempted[-1]:
        step(scheduler)
        preempted.append(scheduler.num_preemptions)
    assert [s.request_id for s in scheduler.running] == ["high0", "high1"]
    assert preempted == [0, 0, 0, 1]  # only once the three shared blocks are computed


def test_no_sequence_gives_way_in_vain_or_to_its_own_priority() -> None:
    scheduler = build(blocks=8, budget=64)
    holder, low = make("holder", 60, 9, priority=5), make("low", 20, 9, arrival=1)
    for sequence in (holder, low):
        scheduler.add(sequence)
    step(scheduler)
    scheduler.add(make("large", 80, 9, arrival=2, priority=1))  # needs more blocks than low has
    scheduler.add(make("equal", 60, 9, arrival=3))
    step(scheduler)
    assert scheduler.num_preemptions == 0
    assert [s.request_id for s in scheduler.waiting] == ["large", "equal"]


def test_no_sequence_gives_way_for_blocks_that_the_other_shares_anyway() -> None:
    scheduler = build(blocks=10, budget=256, names=NAMES)
    holder, low = make("holder", 40, 8, priority=5), make("low", 104, 8, arrival=1)
    holder.tokens = holder.tokens[::-1]  # another prefix
    for sequence in (holder, low):
        scheduler.add(sequence)
    step(scheduler)
    # needs two blocks besides the six shared with low; preempting low would free only one
    scheduler.add(make("large", 124, 1, arrival=2, priority=1))
    step(scheduler)
    assert [s.request_id for s in scheduler.running] == ["holder", "low"]
    order = [a.sequence.request_id for _ in range(20) for a in step(scheduler) if a.finish_reason]
    assert order == ["holder", "low", "large"]
    assert scheduler.num_preemptions == 0
