"""The leader over rank processes: batching, preemption and a lost rank change no tokens."""

import os
import signal
from pathlib import Path
from typing import Any

from services.worker.model_files.model import Model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.orchestrator.rank_engine import RankEngine
from shared.messages import Done, Failed, GenerateRequest
from tests.kits.engine.rank_options import rank_options
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, tokens_of
from tests.kits.worker.options import scheduler_limits


def engine(model: Path, **options: Any) -> RankEngine:
    options = {"tensor_parallel": 2, "threads": 1, "kv_cache_tokens": 4096, "step_timeout_s": 10.0} | options
    return RankEngine(rank_options(model=model, **options))


def ask(number: int, name: str = "r") -> GenerateRequest:
    """Requests vary in sampling and length."""
    return chat(
        f"{name}{number}",
        prompt="abc" * (1 + 9 * number),
        sampling={"max_tokens": 30, "temperature": 0.8 * (number % 2), "seed": number, "ignore_eos": True},
    )


async def alone(kit: Kit, count: int) -> list[list[int]]:
    return [tokens_of(await kit.run(ask(number, "alone"))) for number in range(count)]


async def test_company_and_preemption_change_no_token(
    memory_bus: MemoryBus, model: Path, tiny: Model
) -> None:
    count, blocks = 6, 16
    small = engine(model, kv_cache_tokens=blocks * 16)
    async with Kit(memory_bus, small, model=tiny, steps=scheduler_limits(32, 8, 16)) as kit:
        expected = await alone(kit, count)
        for number in range(count):
            await kit.ask(ask(number))
        together = [tokens_of(await kit.end_of(f"r{number}", 20)) for number in range(count)]
        assert together == expected
        assert len({tuple(tokens) for tokens in expected}) == count
        assert kit.metric("num_preemptions_total") > 0
        await kit.all_free()


async def test_a_killed_rank_costs_the_running_requests_only(
    memory_bus: MemoryBus, model: Path, tiny: Model
) -> None:
    async with Kit(memory_bus, engine(model), model=tiny, back_off=RestartPauses(first_s=0.05)) as kit:
        kit.expected_errors = {"the engine failed"}
        expected = await alone(kit, 1)
        await kit.ask(chat("long", prompt="x", sampling={"max_tokens": 500, "ignore_eos": True}))
        await kit.until(lambda: len(kit.frames["long"]) > 3)
        ranks: Any = kit.leader.detail()["ranks"]
        os.kill(ranks[1]["pid"], signal.SIGKILL)
        last = (await kit.end_of("long"))[-1]
        assert isinstance(last, Failed)
        assert last.code == "group_lost"
        await kit.until(lambda: kit.leader.state == "ready")
        frames = await kit.run(ask(0, "again"))
        assert isinstance(frames[-1], Done)
        assert [tokens_of(frames)] == expected


async def test_a_rank_that_dies_while_nothing_runs_is_replaced_before_a_request_comes(
    memory_bus: MemoryBus, model: Path, tiny: Model
) -> None:
    async with Kit(memory_bus, engine(model), model=tiny, back_off=RestartPauses(first_s=0.05)) as kit:
        kit.expected_errors = {"the engine failed"}
        expected = await alone(kit, 1)
        ranks: Any = kit.leader.detail()["ranks"]
        os.kill(ranks[1]["pid"], signal.SIGKILL)
        await kit.until(lambda: kit.leader.state == "recovering")
        await kit.until(lambda: kit.leader.state == "ready")
        assert [tokens_of(await kit.run(ask(0, "again")))] == expected
