"""Steps submitted to rank processes before earlier ones are done."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, Blocks, generate, new_sequence
from tests.kits.waiting import PATIENCE_S

PROMPT = [*range(3, 33)]


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[RankEngine]:
    engine = RankEngine(rank_options(model=model, tensor_parallel=2, threads=1, kv_cache_tokens=8192))
    await engine.start()
    yield engine
    await engine.stop()


def prefill(prompt: list[int]) -> StepPlan:
    return StepPlan(step_id=1, admit=[new_sequence(1, prompt)], chunks=[Blocks(512).chunk(1, 0, prompt)])


def follow(step_id: int, start: int, new_blocks: list[int] | None = None) -> StepPlan:
    piece = ScheduledChunk(
        seq_id=1, start=start, token_ids=[], new_blocks=new_blocks or [], follow=True, sample=True
    )
    return StepPlan(step_id=step_id, chunks=[piece])


async def test_two_steps_may_wait_and_give_the_tokens_of_one_after_another(engine: RankEngine) -> None:
    futures = [engine.submit(prefill(PROMPT)), engine.submit(follow(2, 30))]
    with pytest.raises(RuntimeError, match="step 3 was submitted before 2 others were done"):
        engine.submit(follow(3, 31))
    tokens = []
    for step_id in range(3, 8):
        tokens.append((await futures.pop(0)).sampled[0].token_id)
        futures.append(engine.submit(follow(step_id, 28 + step_id, [300] if step_id == 4 else None)))
    tokens += [(await future).sampled[0].token_id for future in futures]
    assert tokens == (await generate(engine, [PROMPT], 7, [GREEDY], first_id=2))[0]


async def test_both_steps_fail_with_the_ranks(engine: RankEngine) -> None:
    pid = engine.status()[1]["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    futures = [engine.submit(prefill(PROMPT)), engine.submit(follow(2, 30))]
    os.kill(pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(EngineFailed, match=r"rank 1 .* is gone: killed by SIGKILL"):
            await asyncio.wait_for(future, PATIENCE_S)
    with pytest.raises(EngineFailed, match="is gone"):
        engine.submit(follow(3, 31))


async def test_the_end_of_the_engine_ends_steps_that_were_not_done(engine: RankEngine) -> None:
    long = [7] * 500
    futures = [engine.submit(prefill(long)), engine.submit(follow(2, 500))]
    futures[0].cancel()
    await engine.stop()
    with pytest.raises(EngineFailed, match="the engine was stopped"):
        await futures[1]
    assert engine.status() == []
