"""What the ranks of a running engine record of their steps, on the leader's clock."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import Blocks, make_llama, new_sequence


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[RankEngine]:
    engine = RankEngine(
        rank_options(model=make_llama(tmp_path), tensor_parallel=2, threads=1, kv_cache_tokens=8192)
    )
    await engine.start()
    yield engine
    await engine.stop()


async def test_each_rank_records_its_steps_by_kind_on_the_clock_of_the_leader(engine: RankEngine) -> None:
    times = engine.step_times()
    assert times is not None
    begun_ns = time.monotonic_ns()
    prompt, blocks = [*range(3, 103)], Blocks(512)
    for step_id in range(1, 5):
        plan = StepPlan(
            step_id=step_id,
            admit=[new_sequence(step_id, prompt)],
            slices=[blocks.slice(step_id, 0, prompt)],
        )
        result = await engine.submit(plan)
        ended_ns = time.monotonic_ns()
        first = times.read_step(0, step_id)
        assert first is not None
        assert begun_ns <= first.begin_ns <= first.end_ns <= ended_ns
        assert first.parts.linears == pytest.approx(result.linears_s * 1e9, abs=2)
        assert first.parts.linears > 0
        assert first.parts.collectives > 0
        assert sum(first.parts) <= first.end_ns - first.begin_ns
        assert first.idle_ns == pytest.approx(result.wait_s * 1e9, abs=2)
        begun_ns = ended_ns
    await engine.stop()  # the ranks have ended, and their records can be read
    both = times.read_step_of_all(4)
    assert [one.rank for one in both] == [0, 1]
    # the ranks leave the last all-reduce together, so their steps overlap
    assert max(one.begin_ns for one in both) < min(one.end_ns for one in both)
    assert [times.read_totals(rank).steps for rank in (0, 1)] == [4, 4]
