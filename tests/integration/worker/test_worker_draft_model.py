"""A draft model changes no token, whether its guesses are right or wrong, and whether it lives."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from services.worker.domain.speculation import draft_budget, model_costs, prompt_lookup, speculation
from services.worker.leader.drafting import draft_rounds
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.orchestrator.rank_engine import RankEngine
from shared.messages import GenerateRequest
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import make_llama
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import Kit, chat, tokens_of
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.tokenizers import byte_level

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 9},
    {"temperature": 1.0, "seed": 8, "frequency_penalty": 0.7, "top_k": 30, "logprobs": 2},
]
STEPS = scheduler_limits(128, 8, 16, draft_tokens=4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _random_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _random_model(tmp_path_factory.mktemp("other"), num_hidden_layers=1)


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets models of the same size guess, which does not pay, and nothing else."""
    for name in ("START", "MOST"):
        monkeypatch.setattr(draft_budget, name, 1e9)
        monkeypatch.setattr(model_costs, name, 1e9)
    monkeypatch.setattr(speculation, "START_OF_ONE", 1e9)
    monkeypatch.setattr(prompt_lookup.PromptLookup, "propose", lambda *_: [])


def _random_model(directory: Path, **changes: Any) -> Path:
    make_llama(directory, vocab_size=264, **changes)
    byte_level().save(str(directory / "tokenizer.json"))
    return directory


def _engine(path: Path, **options: Any) -> RankEngine:
    return RankEngine(rank_options(model=path, **{"threads": 1, "kv_cache_tokens": 4096, **options}))


def _draft(path: Path, **options: Any) -> DraftEngine:
    return DraftEngine(_engine(path, **options), "tiny draft", RestartPauses(first_s=0.05, longest_s=0.05))


def _ask(number: int, name: str = "r", max_tokens: int = 40) -> GenerateRequest:
    sampling = SAMPLINGS[number % 4] | {"max_tokens": max_tokens, "ignore_eos": True}
    return chat(f"{name}{number}", prompt="abcde" * (1 + 11 * number), sampling=sampling)


async def _together(kit: Kit, name: str, max_tokens: int = 40) -> list[list[int]]:
    for number in range(4):
        await kit.ask(_ask(number, name, max_tokens))
    return [tokens_of(await kit.end_of(f"{name}{number}")) for number in range(4)]


async def _without(bus: MemoryBus, path: Path, max_tokens: int = 40, **options: Any) -> list[list[int]]:
    async with Kit(bus, _engine(path, **options), model=load_model(path, "tiny"), steps=STEPS) as kit:
        tokens = await _together(kit, "plain", max_tokens)
        assert kit.metric("spec_decode_num_draft_tokens_total") == 0
        return tokens


async def _up(draft: DraftEngine) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await draft.up.wait()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("alike", [True, False])
async def test_guesses_of_a_model_change_no_token(
    memory_bus: MemoryBus,
    target: Path,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ranks: int,
    alike: bool,
) -> None:
    monkeypatch.setattr(draft_rounds, "READ_TOKENS", 64)  # the longest prompt is read in pieces
    expected = await _without(memory_bus, target, tensor_parallel=ranks)
    draft = _draft(target if alike else other)
    engine = _engine(target, tensor_parallel=ranks)
    async with Kit(
        memory_bus, engine, model=load_model(target, "tiny"), steps=STEPS, draft_engine=draft
    ) as kit:
        await _up(draft)
        assert await _together(kit, "all") == expected
        assert [tokens_of(await kit.run(_ask(number, "one"))) for number in range(4)] == expected
        guessed = kit.metric("spec_decode_num_model_draft_tokens_total")
        right = kit.metric("spec_decode_num_model_accepted_tokens_total")
        assert guessed == kit.metric("spec_decode_num_draft_tokens_total") > 100
        assert right > 0.9 * guessed if alike else right < 0.4 * guessed
        counts: Any = kit.leader.detail()["speculation"]
        assert (counts["model"], counts["model_up"], counts["model_draft_tokens"]) == (
            "tiny draft",
            True,
            guessed,
        )
        await kit.all_free()
    assert draft.engine.status() == []


async def test_answers_go_on_when_the_draft_model_is_killed(memory_bus: MemoryBus, target: Path) -> None:
    expected = await _without(memory_bus, target, 300)
    draft = _draft(target)
    async with Kit(
        memory_bus, _engine(target), model=load_model(target, "tiny"), steps=STEPS, draft_engine=draft
    ) as kit:
        kit.expected_errors = {"the draft model is lost, answers go on without it"}
        await _up(draft)
        for number in range(4):
            await kit.ask(_ask(number, "killed", 300))
        await kit.until(lambda: kit.metric("spec_decode_num_model_accepted_tokens_total") > 20)
        before = draft.cache
        (row,) = draft.engine.status()
        assert isinstance(row["pid"], int)
        os.kill(row["pid"], signal.SIGKILL)
        assert [tokens_of(await kit.end_of(f"killed{number}")) for number in range(4)] == expected
        await kit.until(lambda: draft.cache is not before)
        await _up(draft)
        accepted = kit.metric("spec_decode_num_model_accepted_tokens_total")
        assert await _together(kit, "again", 300) == expected
        assert kit.metric("spec_decode_num_model_accepted_tokens_total") > accepted
        assert len([one for one in kit.logs if one["log_level"] == "error"]) == 1


async def test_without_room_for_a_sequence_it_gets_no_guesses(memory_bus: MemoryBus, target: Path) -> None:
    expected = await _without(memory_bus, target)
    draft = _draft(target, kv_cache_tokens=64)  # the longest prompt has more
    async with Kit(
        memory_bus, _engine(target), model=load_model(target, "tiny"), steps=STEPS, draft_engine=draft
    ) as kit:
        await _up(draft)
        assert await _together(kit, "all") == expected
        assert kit.metric("spec_decode_num_model_draft_tokens_total") > 0
        assert draft.cache is not None
        draft.cache.check_invariants()


async def test_a_draft_model_that_does_not_start_costs_no_answer(
    memory_bus: MemoryBus, target: Path, tmp_path: Path
) -> None:
    draft = _draft(tmp_path)  # there is no model
    async with Kit(
        memory_bus, _engine(target), model=load_model(target, "tiny"), steps=STEPS, draft_engine=draft
    ) as kit:
        kit.expected_errors = {"the draft model is lost, answers go on without it"}
        await kit.until(lambda: bool(draft.failure))
        assert len(await _together(kit, "all")) == 4
        counts: Any = kit.leader.detail()["speculation"]
        assert not counts["model_up"]
        assert counts["model_failure"]
