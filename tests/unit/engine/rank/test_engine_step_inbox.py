"""The inbox of a rank: plans in order, and masks that come before or after the next plan."""

import pytest

from services.worker.engine.rank.sequences import PlanError
from services.worker.engine.rank.step_inbox import LeaderGone, StepInbox
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame
from services.worker.rank_protocol.step_masks import StepMasks


def inbox_of(*messages: StepPlan | StepMasks) -> StepInbox:
    reader, data = FrameReader(), b""
    for message in messages:
        data += pack_frame(FrameKind.PLAN if isinstance(message, StepPlan) else FrameKind.MASKS, message)
    return StepInbox(reader.feed(data), lambda kind, body: None)


def masks(step_id: int) -> StepMasks:
    return StepMasks(step_id=step_id, masks=[bytes([step_id])])


def test_plans_come_in_order_and_each_step_gets_its_masks() -> None:
    inbox = inbox_of(
        StepPlan(step_id=1), masks(1), StepPlan(step_id=2), StepPlan(step_id=3), masks(2), StepPlan(step_id=4)
    )
    seen = []
    for plan in inbox.plans():
        seen.append(plan.step_id)
        if plan.step_id < 3:
            assert inbox.await_masks(plan.step_id) == [bytes([plan.step_id])]
    assert seen == [1, 2, 3, 4]


def test_masks_of_another_step_are_a_bug_of_the_leader() -> None:
    inbox = inbox_of(StepPlan(step_id=1), masks(2))
    next(inbox.plans())
    with pytest.raises(PlanError, match="the masks of step 2 came while step 1 ran"):
        inbox.await_masks(1)


def test_a_leader_that_plans_on_without_masks_is_not_waited_for() -> None:
    inbox = inbox_of(*(StepPlan(step_id=step) for step in range(1, 9)))
    next(inbox.plans())
    with pytest.raises(PlanError, match="3 plans came before the masks of step 1"):
        inbox.await_masks(1)


def test_a_leader_that_is_gone_ends_the_wait() -> None:
    inbox = inbox_of(StepPlan(step_id=1))
    next(inbox.plans())
    with pytest.raises(LeaderGone):
        inbox.await_masks(1)
