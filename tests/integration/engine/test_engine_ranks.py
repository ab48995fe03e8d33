"""Rank processes: the same tokens at any tensor-parallel size, and a clear error when a process dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import (
    GREEDY,
    UNEVEN,
    Blocks,
    generate,
    make_llama,
    new_sequence,
    some_tokens,
)
from tests.kits.waiting import wait_for

PROMPT = [5, 9, 2, 77, 140]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("uneven"), **UNEVEN["nine heads on three"])


@asynccontextmanager
async def running(model: Path, world: int, **changes: Any) -> AsyncIterator[tuple[RankEngine, EngineInfo]]:
    """An engine with one thread per rank; at the end it is stopped, and no process may be left."""
    options = {"threads": 1, "kv_cache_tokens": 8192} | changes
    engine = RankEngine(rank_options(model=model, tensor_parallel=world, **options))
    pids: list[int] = []
    try:
        info = await engine.start()
        pids = [rank.pid for rank in info.ranks]
        yield engine, info
    finally:
        await engine.stop()
    assert not any(map(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_greedy_tokens_do_not_depend_on_the_split(model: Path) -> None:
    prompt, count = some_tokens(120, 1), 64

    async def run(world: int, count: int = count, **changes: Any) -> tuple[list[int], EngineInfo]:
        async with running(model, world, **changes) as (engine, info):
            return (await generate(engine, [prompt], count, [GREEDY]))[0], info

    runs = {world: uvloop.run(run(world)) for world in (1, 2, 4)}
    over_gloo, _ = uvloop.run(run(2, 32, collectives="gloo"))
    whole = prompt + runs[1][0]
    with open_checkpoint(model) as checkpoint:
        likeliest = ReferenceDecoder(checkpoint, read_config(model)).logits(whole).argmax(-1).tolist()
    assert runs[1][0] == likeliest[len(prompt) - 1 : -1]
    assert runs[2][0] == runs[4][0] == runs[1][0]
    assert over_gloo == runs[1][0][:32]

    assert len({info.fingerprint for _, info in runs.values()}) == 1
    file_bytes = (model / "model.safetensors").stat().st_size
    for world, (_, info) in runs.items():
        assert (info.num_blocks, info.vocab_size, info.context_length) == (512, 203, 512)
        assert [rank.rank for rank in info.ranks] == list(range(world))
        for rank in info.ranks:
            # norms are replicated on every rank, the rest is split
            assert 0.9 / world < rank.loaded_bytes / file_bytes < 1.06 / world


def test_greedy_tokens_do_not_depend_on_uneven_shares(uneven: Path) -> None:
    """Each byte of the file is read once, whatever the shares."""
    prompt = some_tokens(70, 1)

    async def run(world: int, **changes: Any) -> tuple[list[int], EngineInfo]:
        async with running(uneven, world, **changes) as (engine, info):
            return (await generate(engine, [prompt], 32, [GREEDY]))[0], info

    expected, info = uvloop.run(run(1))
    read = info.ranks[0].loaded_bytes
    for world, changes in ((2, {}), (3, {"kernels": "plain"})):
        tokens, info = uvloop.run(run(world, **changes))
        assert tokens == expected
        assert sum(rank.loaded_bytes for rank in info.ranks) == read


async def test_the_same_tokens_alone_and_in_a_batch(model: Path) -> None:
    prompts = [some_tokens(length, length) for length in (1, 17, 70, 130, 5)]
    samplings = [
        EngineSampling(seed=1, temperature=1.3),
        EngineSampling(seed=2, top_p=0.9, frequency_penalty=0.5),
        GREEDY,
        EngineSampling(seed=4, top_k=20, repetition_penalty=1.2),
        EngineSampling(seed=5, min_p=0.02, logit_bias={3: 4.0}),
    ]
    async with running(model, 2) as (engine, info):
        together = await generate(engine, prompts, 40, samplings)
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            alone = await generate(engine, [prompt], 40, [sampling], first_id=50 + index)
            assert alone[0] == together[index]
        # a sequence resumed with half of its output, as after a preemption, continues with the same tokens
        resumed = [*prompts[1], *together[1][:20]]
        plan = StepPlan(
            step_id=999,
            admit=[new_sequence(90, resumed, samplings[1], prompt_len=len(prompts[1]))],
            chunks=[Blocks(512).chunk(90, 0, resumed)],
        )
        result = await engine.submit(plan)
        assert result.sampled[0].token_id == together[1][20]
        assert result.compute_s > result.collectives_s > 0
        status = engine.status()
        assert [row["state"] for row in status] == ["ready", "ready"]
        assert [row["kernels"] for row in status] == [rank.kernels for rank in info.ranks] != ["", ""]
        assert all(int(str(row["memory_bytes"])) > 2**20 for row in status)


@pytest.mark.parametrize(("name", "victim"), [("model", 0), ("model", 1), ("uneven", 1)])
async def test_the_death_of_a_rank_is_reported_at_once(
    name: str, victim: int, request: pytest.FixtureRequest
) -> None:
    async with running(request.getfixturevalue(name), 2) as (engine, info):
        expected = await generate(engine, [PROMPT], 3, [GREEDY])
        os.kill(info.ranks[victim].pid, signal.SIGKILL)
        # the limit is below the time limit of a step, which would end it too
        with pytest.raises(
            EngineFailed, match=rf"rank {victim} \(pid \d+\) is gone: killed by SIGKILL"
        ) as raised:
            await asyncio.wait_for(generate(engine, [PROMPT], 400, [GREEDY], first_id=7), 20)
        assert raised.value.failure.outside
        with pytest.raises(EngineFailed, match="is gone"):
            await engine.submit(StepPlan(step_id=1))
        assert {row["state"] for row in engine.status()} == {"failed"}
        await engine.stop()
        # starts new processes
        await engine.start()
        assert await generate(engine, [PROMPT], 3, [GREEDY]) == expected


async def test_a_hanging_rank_is_an_error_in_time(model: Path) -> None:
    async with running(model, 2, step_timeout_s=1.0) as (engine, info):
        os.kill(info.ranks[1].pid, signal.SIGSTOP)
        named = r"not done within 1\S* s: rank 1 \(pid \d+\) is behind; it is stopped by a signal"
        with pytest.raises(EngineFailed, match=named):
            await generate(engine, [PROMPT], 3, [GREEDY])


async def test_a_plan_that_contradicts_the_last_one_ends_the_engine(model: Path) -> None:
    async with running(model, 1) as (engine, _):
        with pytest.raises(EngineFailed, match="rank 0: sequence 3 is not known"):
            await engine.submit(StepPlan(step_id=1, chunks=[Blocks(512).chunk(3, 0, [1])]))


async def test_a_step_that_is_abandoned_is_computed_all_the_same(model: Path) -> None:
    async with running(model, 1) as (engine, _):
        prompt = some_tokens(399, 1)
        plan = StepPlan(step_id=1, admit=[new_sequence(1, prompt)], chunks=[Blocks(512).chunk(1, 0, prompt)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.submit(plan), 0.0001)
        follow = ScheduledChunk(seq_id=1, start=399, token_ids=[], follow=True, sample=True)
        result = await engine.submit(StepPlan(step_id=2, chunks=[follow]))
        assert result.sampled[0].token_id == (await generate(engine, [prompt], 2, [GREEDY], first_id=2))[0][1]


@pytest.mark.parametrize(
    ("world", "changes", "named"),
    [
        (5, {}, "tensor_parallel=5 exceeds the model's num_key_value_heads=4"),
        (2, {"kv_cache_tokens": 10**12}, "kv_cache_tokens=1000000000000 needs .* GiB"),
        (1, {"kernels": "plain", "precision": "int8"}, "precision=int8 needs the native kernels"),
        (1, {"engine_start_timeout_s": 0.001}, r"did not load the model within 0\.001 s"),
    ],
)
async def test_what_cannot_start_says_why(
    model: Path, world: int, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(EngineFailed, match=named):
        async with running(model, world, **changes):
            pass


async def test_a_damaged_model_says_which_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    engine = RankEngine(rank_options(model=tmp_path, tensor_parallel=2))
    with pytest.raises(EngineFailed, match=r"model\.safetensors is no complete safetensors file"):
        await engine.start()
    assert engine.status() == []


async def test_the_cache_may_be_a_share_of_memory(model: Path) -> None:
    # of the memory that other tests leave: `generate` takes blocks up to number 511
    async with running(model, 1, kv_cache_tokens=0, kv_memory_share=0.004) as (engine, info):
        assert info.num_blocks > 16
        assert len((await generate(engine, [PROMPT], 2, [GREEDY]))[0]) == 2


LEADER = """
import asyncio, sys
from pathlib import Path
from tests.kits.engine.rank_options import rank_options
from services.worker.orchestrator.rank_engine import RankEngine

async def main():
    engine = RankEngine(rank_options(model=Path(sys.argv[1]), tensor_parallel=2, kv_cache_tokens=512))
    info = await engine.start()
    print(*[rank.pid for rank in info.ranks], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_ranks_do_not_outlive_their_leader(model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, str(model)], stdout=subprocess.PIPE, text=True
    ) as leader:
        assert leader.stdout is not None
        pids = [int(pid) for pid in leader.stdout.readline().split()]
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # only the leader handles Ctrl-C
        time.sleep(0.1)
        assert all(map(_alive, pids))
        leader.kill()
    wait_for(lambda: not any(map(_running, pids)), "all have ended")


def _running(pid: int) -> bool:
    """Whether a process is alive and no zombie; the reaper of orphans may be late."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
