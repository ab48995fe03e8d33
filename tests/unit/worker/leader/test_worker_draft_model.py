"""A leader with a draft model: the same answers in fewer steps, also if guesses are wrong or it dies."""

import asyncio

import pytest

from services.worker.domain.scheduling.scheduler import SchedulerLimits
from services.worker.domain.speculation.step_costs import StepCosts
from services.worker.leader import draft_model
from services.worker.null.null_engine import NullEngine
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared.bus.memory import MemoryBus
from shared.messages import Done
from tests.kits.worker.leader import Kit, chat, tokens_of

TOKENS = [*range(1, 251)]  # nothing comes twice, so nothing is found in the text
STEPS = SchedulerLimits(256, 64, 64, draft_tokens=4)


class Counted(NullEngine):
    """A null engine that counts its steps, and dies at one of them."""

    def __init__(self, tokens: list[int], dies_at: int = 0) -> None:
        super().__init__(tokens=tokens, num_blocks=256, vocab_size=257, context_length=2048)
        self.steps = 0
        self.dies_at = dies_at

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        self.steps += 1
        if self.steps == self.dies_at:
            self._end("killed")
        return super().submit(plan)


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses cost nothing: null engines take no time, so that measured prices would be noise."""
    monkeypatch.setattr(StepCosts, "model_price", lambda *_: 0.01)
    monkeypatch.setattr(StepCosts, "in_steps", lambda *_: 0.0)
    monkeypatch.setattr(StepCosts, "book_drafts", lambda *_: 0.0)
    monkeypatch.setattr(draft_model, "FIRST_PAUSE_S", 0.01)


async def answers(
    bus: MemoryBus, engine: NullEngine, draft: NullEngine | None, **options: object
) -> list[list[int]]:
    async with Kit(bus, engine, draft_engine=draft, steps=STEPS, **options) as kit:
        if draft is not None:
            model = kit.leader.parts.draft_model
            assert model is not None
            await kit.until(lambda: model.is_up)
        for number in range(3):
            sampling = {"max_tokens": 60 + number, "n": 1 + number % 2}
            await kit.ask(chat(f"r{number}", prompt="x" * (5 + 40 * number), sampling=sampling))
        told = []
        for number in range(3):
            frames = await kit.end_of(f"r{number}")
            assert isinstance(frames[-1], Done)
            told.append(tokens_of(frames))
        await kit.all_free()
    return told


async def test_right_guesses_save_steps(memory_bus: MemoryBus) -> None:
    plain, drafted, draft = Counted(TOKENS), Counted(TOKENS), Counted(TOKENS)
    assert await answers(memory_bus, plain, None) == await answers(memory_bus, drafted, draft)
    assert drafted.steps < plain.steps / 2
    assert draft.steps > 10


async def test_wrong_guesses_change_nothing(memory_bus: MemoryBus) -> None:
    plain, drafted, draft = Counted(TOKENS), Counted(TOKENS), Counted([251, 252])
    assert await answers(memory_bus, plain, None) == await answers(memory_bus, drafted, draft)
    assert draft.steps > 10


async def test_guesses_beyond_the_vocabulary_are_dropped(memory_bus: MemoryBus) -> None:
    plain, drafted, draft = Counted(TOKENS), Counted(TOKENS), Counted([251, 300])
    assert await answers(memory_bus, plain, None) == await answers(memory_bus, drafted, draft)
    assert draft.steps > 10


@pytest.mark.parametrize("dies_at", [1, 2, 7])
async def test_answers_go_on_when_the_draft_model_dies_and_it_comes_back(
    memory_bus: MemoryBus, dies_at: int
) -> None:
    plain, drafted, draft = Counted(TOKENS), Counted(TOKENS), Counted(TOKENS, dies_at)
    assert await answers(memory_bus, plain, None) == await answers(memory_bus, drafted, draft)
    assert draft.steps >= dies_at
    async with Kit(memory_bus, drafted, draft_engine=draft, steps=STEPS) as kit:
        model = kit.leader.parts.draft_model
        assert model is not None
        draft.dies_at = draft.steps + 1
        assert isinstance((await kit.run(chat("a", prompt="abc", sampling={"max_tokens": 20})))[-1], Done)
        await kit.until(lambda: model.is_up and draft.steps > draft.dies_at - 1)
        before = draft.steps
        assert isinstance((await kit.run(chat("b", prompt="abc", sampling={"max_tokens": 20})))[-1], Done)
        assert draft.steps > before


async def test_prompts_are_not_caught_up_when_that_has_cost_too_much(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "CATCH_UP_S", 0.0)
    draft = Counted(TOKENS)
    async with Kit(memory_bus, Counted(TOKENS), draft_engine=draft, steps=STEPS) as kit:
        model = kit.leader.parts.draft_model
        assert model is not None
        await kit.until(lambda: model.is_up)
        assert isinstance((await kit.run(chat("a", prompt="x" * 900, sampling={"max_tokens": 40})))[-1], Done)
    assert draft.steps == 0
