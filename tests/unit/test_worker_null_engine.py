"""The null engine computes what can be computed, and nothing else."""

import pytest

from services.worker.domain.plan import EngineFailed, NewSequence, Slice, StepPlan
from shared.messages import Sampling
from tests.worker_kit import null_engine


def new(seq_id: int) -> NewSequence:
    return NewSequence(seq_id=seq_id, token_ids=[1, 2], prompt_len=2, sampling=Sampling())


NEXT = ord("e")  # what it says after two tokens

GOOD = StepPlan(
    step_id=1,
    admit=[new(1)],
    slices=[Slice(seq_id=1, start=0, token_ids=[1, 2], new_blocks=[3], sample=True)],
)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (StepPlan(step_id=2, slices=[Slice(seq_id=2, start=0, token_ids=[1])]), "not admitted"),
        (StepPlan(step_id=2, slices=[Slice(seq_id=1, start=1, token_ids=[1])]), "computed up to 2"),
        (StepPlan(step_id=2, slices=[Slice(seq_id=1, start=2, token_ids=[])]), "0 tokens"),
        (StepPlan(step_id=2, slices=[Slice(seq_id=1, start=2, token_ids=[1])]), "other tokens"),
        (StepPlan(step_id=2, slices=[Slice(seq_id=1, start=2, token_ids=[NEXT], new_blocks=[3])]), "block 3"),
        (
            StepPlan(step_id=2, slices=[Slice(seq_id=1, start=2, token_ids=[NEXT], new_blocks=[999])]),
            "block 999",
        ),
        (StepPlan(step_id=2, admit=[new(1)]), "second time"),
        (StepPlan(step_id=2, release=[7]), "not there"),
        (
            StepPlan(
                step_id=2,
                admit=[new(2)],
                slices=[Slice(seq_id=2, start=0, token_ids=[1, 2], new_blocks=[3])],
            ),
            "taken",
        ),
    ],
)
async def test_the_null_engine_refuses_plans_that_cannot_be_computed(plan: StepPlan, complaint: str) -> None:
    engine = null_engine()
    await engine.start()
    result = await engine.submit(GOOD)
    assert [(s.seq_id, chr(s.token_id)) for s in result.sampled] == [(1, "e")]
    with pytest.raises(EngineFailed, match=complaint):
        await engine.submit(plan)
    await engine.stop()
    with pytest.raises(EngineFailed, match="stopped"):
        await engine.submit(GOOD)
