"""Masks between a leader and an engine with steps in flight: late masks, cancels, failures of the engine."""

from typing import Any

import pytest

from services.worker.null.engine import NullEngine
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.step_masks import StepMasks, mask_of
from shared.messages import Failed, GenerateRequest
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, null_engine, text_of

FORM = "id=[0-9]{3}, name=(fox|dog)[a-z]{9} and that is all"


def ask(name: str, **sampling: Any) -> GenerateRequest:
    structured = {"kind": "regex", "definition": FORM}
    return chat(name, prompt="x" * len(name), sampling={"max_tokens": 99, **sampling}, structured=structured)


class Watched(NullEngine):
    """Records what is behind a step when its masks come."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(
            tokens=[*b"abc"], num_blocks=64, vocab_size=257, context_length=1024, step_delay_s=delay_s
        )
        self.plans: list[StepPlan] = []
        self.masked: list[int] = []

    def submit(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        return super().submit(plan)

    def supply_masks(self, masks: StepMasks) -> None:
        self.masked.append(masks.step_id)
        super().supply_masks(masks)


async def test_sequences_under_grammars_are_run_ahead_and_give_the_same(memory_bus: MemoryBus) -> None:
    answers = []
    for delay_s in (0.0, 0.002):
        engine = Watched(delay_s)
        async with Kit(memory_bus, engine) as kit:
            for name in ("r", "rr"):
                await kit.ask(ask(name, n=3))
            frames = [await kit.end_of(name) for name in ("r", "rr")]
            answers.append(
                [(text_of(one, choice), finish_of(one, choice)) for one in frames for choice in range(3)]
            )
            await kit.all_free()
        follows = [piece for plan in engine.plans for piece in plan.chunks if piece.follow and piece.masked]
        assert bool(follows) == bool(delay_s)
        expected = [plan.step_id for plan in engine.plans if any(piece.masked for piece in plan.chunks)]
        assert engine.masked == expected
    assert answers[0] == answers[1]
    assert all(text.endswith(" and that is all") and reason == "stop" for text, reason in answers[0])


async def test_requests_that_are_cancelled_or_fail_while_masks_are_due_leave_nothing(
    memory_bus: MemoryBus,
) -> None:
    engine = Watched(0.002)
    async with Kit(memory_bus, engine, back_off=RestartPauses(first_s=0.01)) as kit:
        kit.expected_errors = {"the engine failed"}
        for number in range(6):
            await kit.ask(ask(f"r{number}", n=2))
            await kit.until(lambda: len(engine.masked) > 3)
            kit.leader.parts.table.cancel_request(f"r{number}", "the test wants it")
            assert isinstance((await kit.end_of(f"r{number}"))[-1], Failed)
            engine.masked.clear()
        await kit.all_free()
        await kit.ask(ask("lost"))
        await kit.until(lambda: len(engine.masked) > 3)
        await engine.stop()
        last = (await kit.end_of("lost"))[-1]
        assert isinstance(last, Failed)
        assert last.resumable
        await kit.until(lambda: kit.leader.load().total_blocks > 0)  # the engine is back
        assert finish_of(await kit.run(ask("next"))) == "stop"
        await kit.all_free()


def masked_step(step_id: int) -> StepPlan:
    new = NewSequence(seq_id=step_id, token_ids=[1, 2], prompt_len=2, sampling=EngineSampling())
    piece = ScheduledChunk(
        seq_id=step_id, start=0, token_ids=[1, 2], new_blocks=[step_id], sample=True, masked=True
    )
    return StepPlan(step_id=step_id, admit=[new], chunks=[piece])


async def test_the_null_engine_waits_for_masks_and_refuses_those_of_other_steps() -> None:
    engine = null_engine()
    engine.reset()
    first, second = engine.submit(masked_step(1)), engine.submit(masked_step(2))
    assert not first.done()
    engine.supply_masks(StepMasks(step_id=1, masks=[mask_of(77)]))
    assert [one.token_id for one in first.result().sampled] == [77]
    assert not second.done()
    engine.supply_masks(StepMasks(step_id=3, masks=[mask_of(77)]))
    with pytest.raises(EngineFailed, match="masks of step 3 came for step 2"):
        second.result()
    with pytest.raises(EngineFailed, match="cannot run step 4"):
        engine.submit(masked_step(4))
