"""Real ranks with a draft model in an engine of its own: equal tokens, if it is right, wrong or killed."""

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.engine.driver import Driver, start_driver
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.speculation.step_costs import StepCosts
from services.worker.leader.draft_model import DraftModel
from services.worker.orchestrator.rank_engine import RankEngine
from shared.messages import Sampling
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import make_llama
from tests.kits.engine.shared_fork_server import sharing

MOST, TOKENS, VOCAB = 5, 48, 203
SAMPLINGS = [
    Sampling(temperature=0.0, ignore_eos=True),
    Sampling(seed=3, temperature=0.8, top_p=0.9, repetition_penalty=1.3, ignore_eos=True),
    Sampling(seed=4, temperature=1.0, presence_penalty=0.9, frequency_penalty=0.7, ignore_eos=True),
]
Drafted = tuple[Driver, RankEngine, DraftModel]
PROMPTS = [[7, 9, 11, 30], [*range(40, 75)], [101, 5, 5, 8, 2, 90], [*range(150, 30, -1)]]


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are made whatever they take: both models are tiny."""
    monkeypatch.setattr(StepCosts, "model_price", lambda *_: 0.01)
    monkeypatch.setattr(StepCosts, "in_steps", lambda *_: 0.0)
    monkeypatch.setattr(StepCosts, "book_drafts", lambda *_: 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"), intermediate_size=128)


@asynccontextmanager
async def drafted(
    model: Path, draft: Path, world: int = 1
) -> AsyncIterator[tuple[Driver, RankEngine, DraftModel]]:
    """A driver of a target with a draft model."""
    async with AsyncExitStack() as stack:
        engine = RankEngine(rank_options(draft, threads=1, kv_cache_tokens=4096))
        stack.push_async_callback(engine.stop)
        draft_model = DraftModel(engine, VOCAB, time.monotonic)
        draft_model.begin_start(await engine.start())
        options = rank_options(model, tensor_parallel=world, threads=1, kv_cache_tokens=4096)
        driver, _ = await start_driver(stack, options, len(PROMPTS), MOST, draft_model)
        yield driver, engine, draft_model


async def without(driver: Driver, sampling: Sampling) -> list[list[int]]:
    driver.speculation.most = 0
    found = (await driver.run_batch(PROMPTS, TOKENS, sampling=sampling)).tokens
    driver.speculation.most = MOST
    driver.speculation.take_counts()
    return found


@pytest.mark.parametrize("world", [1, 2])
async def test_the_same_model_guesses_nearly_all_tokens(model: Path, world: int) -> None:
    async with drafted(model, model, world) as (driver, _, draft_model):
        for sampling in SAMPLINGS:
            plain = await without(driver, sampling)
            assert (await driver.run_batch(PROMPTS, TOKENS, sampling=sampling)).tokens == plain
            counts = driver.speculation.take_counts()
            assert counts.accepted_tokens > 0.9 * counts.draft_tokens > 50
        assert draft_model.is_up


async def test_another_model_guesses_few_and_changes_nothing(model: Path, tmp_path: Path) -> None:
    other = make_llama(tmp_path / "other", intermediate_size=96, num_hidden_layers=1)
    async with drafted(model, other) as (driver, _, draft_model):
        for sampling in SAMPLINGS:
            plain = await without(driver, sampling)
            assert (await driver.run_batch(PROMPTS, TOKENS, sampling=sampling)).tokens == plain
            counts = driver.speculation.take_counts()
            assert counts.draft_tokens > 20
            assert counts.accepted_tokens < 0.5 * counts.draft_tokens
        assert draft_model.is_up


async def test_answers_are_equal_when_the_draft_models_rank_is_killed(model: Path) -> None:
    async with drafted(model, model) as (driver, engine, draft_model):
        plain = await without(driver, SAMPLINGS[2])
        (rank,) = engine.status()

        guess = draft_model.guess

        async def kill_and_guess(scheduler: Scheduler) -> bool:
            if scheduler.speculation.num_drafted and draft_model.is_up:
                os.kill(int(str(rank["pid"])), signal.SIGKILL)
            return await guess(scheduler)

        draft_model.guess = kill_and_guess  # type: ignore[method-assign]
        found = (await driver.run_batch(PROMPTS, TOKENS, sampling=SAMPLINGS[2])).tokens
        assert found == plain
        assert (await driver.run_batch(PROMPTS, TOKENS, sampling=SAMPLINGS[2])).tokens == plain
        assert not draft_model.is_up
