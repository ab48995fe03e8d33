"""The time limit of a step: a base, and time for its tokens at the slowest recent pace."""

import pytest

from services.worker.orchestrator.time_limits import StepLimit
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan


def plan(num_tokens: int) -> StepPlan:
    return StepPlan(step_id=1, chunks=[ScheduledChunk(seq_id=1, start=0, token_ids=[7] * num_tokens)])


def test_a_large_model_gets_time_for_its_first_chunk_and_a_small_one_no_more_than_it_needs() -> None:
    assert StepLimit(30, 28 * 10**9).limit_s(plan(512)) > 10 * 72  # 7B in fp32: 72 s at 100 GFLOP/s
    assert StepLimit(30, 10 * 10**6).limit_s(plan(512)) < 31
    assert StepLimit(30, 28 * 10**9).limit_s(StepPlan(step_id=2)) == 30


def test_the_pace_that_was_seen_replaces_the_assumption() -> None:
    limit = StepLimit(30, 28 * 10**9)
    limit.record_step(plan(512), 51.2)
    assert limit.limit_s(plan(512)) == pytest.approx(30 + 2 * 51.2)
    limit.record_step(plan(1), 3.0)  # too few tokens to measure a pace
    assert limit.limit_s(plan(100)) == pytest.approx(30 + 2 * 10)


def test_a_slower_pace_counts_at_once_and_is_forgotten_slowly() -> None:
    limit = StepLimit(1, 0)
    for seconds in (0.1, 10.0, 0.1):
        limit.record_step(plan(100), seconds)
    assert limit.limit_s(plan(100)) == pytest.approx(1 + 2 * 9.8)
    for _ in range(300):
        limit.record_step(plan(100), 0.1)
    assert limit.limit_s(plan(100)) == pytest.approx(1.2)


def test_tokens_of_run_ahead_count() -> None:
    limit = StepLimit(1, 2 * 10**10)
    ahead = StepPlan(step_id=1, chunks=[ScheduledChunk(seq_id=1, start=3, token_ids=[], follow=True)])
    assert limit.limit_s(ahead) == pytest.approx(3)
