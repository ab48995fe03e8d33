"""Steps that bring what has arrived: each sequence gets exactly its tokens, whatever comes when.

Groups are schedulers, each with sequences that generate on their own. Their tokens arrive in any order and in
bursts; sequences are cancelled, end with errors and go on at another group; groups lose their engines.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.rank_protocol.plan import BLOCK_SIZE, Sampled, StepResult
from tests.kits.guests.arriving_groups import GUEST, Fleet, Group
from tests.kits.worker.scheduler import make


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
    group, _ = running(output=30, itl_target_s=0.01)
    before = group.scheduler.costs.rates()
    for _ in range(20):
        assert group.plan is not None
        sampled = [Sampled(seq_id=1, token_id=1)]
        result = StepResult(step_id=group.plan.step_id, sampled=sampled, compute_s=3.0)
        group.scheduler.apply(result, 3.0)
        group.plan = None
        assert group.submit()
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
