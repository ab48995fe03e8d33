"""The ranks' processes get smaller when the leader limits the KV cache, and go on with the same tokens."""

import random
from pathlib import Path

import pytest

from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.engine_state import EngineState
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import Engine
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY
from tests.kits.worker.options import scheduler_limits

POOL_TOKENS = 32_768


async def _serve(engine: Engine, scheduler: Scheduler, prompts: list[list[int]]) -> dict[str, list[int]]:
    """Serves the prompts, eight tokens each."""
    made = [
        Sequence(str(number), 0, [*prompt], len(prompt), 8, GREEDY) for number, prompt in enumerate(prompts)
    ]
    for number, sequence in enumerate(made):
        sequence.enqueued_as(number)
        scheduler.add(sequence)
    while scheduler.has_work:
        plan = scheduler.plan()
        for advance in scheduler.apply(await engine.submit(plan)):
            if advance.finish_reason:
                scheduler.end(advance.sequence)
    return {sequence.request_id: sequence.tokens[sequence.prompt_len :] for sequence in made}


def _own_bytes(pid: int) -> int:
    """Memory of a process that is not shared."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _state(engine: Engine) -> EngineState:
    limits = scheduler_limits(512, 16, 256)
    costs = TransferCostModel(512)
    return EngineState(engine, limits, "tenant", 512, costs, adapter_bytes=0, clock=lambda: 0.0)


@pytest.mark.parametrize("world", [1, 2])
async def test_ranks_give_memory_back_and_take_it_again(model: Path, world: int) -> None:
    chance = random.Random(world)
    prompts = [[chance.randrange(203) for _ in range(480)] for _ in range(80)]
    engine = RankEngine(
        rank_options(
            model=model, tensor_parallel=world, threads=1, kv_cache_tokens=POOL_TOKENS, precision="fp32"
        )
    )
    state = _state(engine)
    try:
        info = await engine.start()
        scheduler, pids = state.begin_start(info), [rank.pid for rank in info.ranks]
        before = [_own_bytes(pid) for pid in pids]
        wanted = await _serve(engine, scheduler, prompts)
        pool_bytes = info.block_bytes * info.num_blocks
        full = [_own_bytes(pid) for pid in pids]
        for pid_before, pid_full in zip(before, full, strict=True):
            assert pid_full - pid_before > 0.9 * pool_bytes
        limit = state.set_kv_limit(1)
        assert limit == scheduler.blocks.limit == blocks_for(512)
        scheduler.apply(await engine.submit(scheduler.plan()))
        small = [_own_bytes(pid) for pid in pids]
        for pid_full, pid_small in zip(full, small, strict=True):
            assert pid_full - pid_small > 0.7 * pool_bytes  # regions share their first and last page
        assert await _serve(engine, scheduler, prompts) == wanted
        assert state.set_kv_limit(info.num_blocks) == info.num_blocks
        assert await _serve(engine, scheduler, prompts) == wanted
        assert scheduler.num_preemptions == 0
    finally:
        await engine.stop()


async def test_ranks_without_kernels_keep_their_memory(model: Path) -> None:
    engine = RankEngine(rank_options(model=model, threads=1, kv_cache_tokens=1024, kernels="plain"))
    state = _state(engine)
    try:
        info = await engine.start()
        scheduler = state.begin_start(info)
        assert state.set_kv_limit(1) == scheduler.blocks.limit == info.num_blocks
        assert scheduler.plan().is_empty
    finally:
        await engine.stop()
