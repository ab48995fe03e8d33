"""Adapters over rank processes: rotation, preemption and a lost group change no token of an answer."""

import os
import signal
from pathlib import Path
from typing import Any

from services.worker.adapters.inspection import inspect_adapter
from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.orchestrator.rank_engine import RankEngine
from shared import codec
from shared.messages import Accepted, Adapter, Failed, GenerateRequest, ResumePoint
from tests.kits.adapters.handmade import DEMO, pair, write_peft
from tests.kits.engine.rank_options import rank_options
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, tokens_of
from tests.kits.worker.options import scheduler_limits

SLOT = 2**20  # what an adapter is said to take, so that the pool has few slots


def engine(world: int = 1) -> RankEngine:
    options = {"tensor_parallel": world, "threads": 1, "kv_cache_tokens": 8192, "kernels": "plain"}
    return RankEngine(rank_options(model=DEMO, **options))


def adapter(directory: Path, number: int) -> Adapter:
    tensors = pair("model.layers.0.self_attn.q_proj", 256, 192, seed=number)
    tensors |= pair("model.layers.3.mlp.down_proj", 192, 512, seed=100 + number)
    source = write_peft(directory / f"a{number}", tensors)
    found = inspect_adapter(source, DEMO)
    return Adapter(
        name=f"a{number}",
        base="demo",
        source=str(source),
        fingerprint=found.fingerprint,
        rank=found.rank,
        num_bytes=SLOT,
    )


def ask(name: str, tokens: int = 60, **fields: Any) -> GenerateRequest:
    sampling = {"max_tokens": tokens, "temperature": 0.8, "seed": 7, "ignore_eos": True}
    return chat(name, prompt="Once upon a time there was a cat. " * 2, sampling=sampling, **fields)


async def test_many_adapters_on_one_slot_answer_as_each_does_alone(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    adapters = [adapter(tmp_path, number) for number in range(4)]
    chosen = [None, *adapters, *adapters]
    options: dict[str, Any] = {"model": load_model(DEMO), "steps": scheduler_limits(64, 16, 32)}
    async with Kit(memory_bus, engine(2), adapter_bytes=4 * SLOT, **options) as kit:
        alone = [
            tokens_of(await kit.run(ask(f"alone{number}"), adapter=one))
            for number, one in enumerate(chosen[:5])
        ]
    assert len({tuple(tokens) for tokens in alone}) == 5
    async with Kit(memory_bus, engine(2), "g1", adapter_bytes=SLOT, **options) as kit:
        for number, one in enumerate(chosen):
            await kit.ask(ask(f"r{number}"), adapter=one)
        together = [tokens_of(await kit.end_of(f"r{number}")) for number in range(len(chosen))]
        assert together == [*alone, *alone[1:]]
        assert kit.metric("adapter_evictions_total") >= 3
        await kit.all_free()


async def test_an_answer_of_a_lost_group_goes_on_with_its_adapter(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    chosen = adapter(tmp_path, 1)
    options: dict[str, Any] = {"model": load_model(DEMO)}
    async with Kit(memory_bus, engine(2), "g1", **options) as other:
        whole = tokens_of(await other.run(ask("whole", 200), adapter=chosen))
        async with Kit(memory_bus, engine(1), "g0", back_off=RestartPauses(first_s=0.05), **options) as lost:
            lost.expected_errors = {"the engine failed"}
            await lost.ask(ask("r", 200), adapter=chosen)
            await lost.until(lambda: len(tokens_of(lost.frames["r"])) > 20)
            ranks: Any = lost.leader.detail()["ranks"]
            os.kill(ranks[0]["pid"], signal.SIGKILL)
            frames = await lost.end_of("r")
        assert isinstance(frames[-1], Failed)
        assert frames[-1].resumable
        accepted = frames[0]
        assert isinstance(accepted, Accepted)
        begun = tokens_of(frames)
        point = ResumePoint(
            token_ids=[codec.pack_tokens(begun)],
            next_seq=len(frames) - 1,
            fingerprint=accepted.fingerprint,
        )
        rest = tokens_of(await other.run(ask("r", 200, attempt=1, resume=point), adapter=chosen))
    assert 20 < len(begun) < 200
    assert begun + rest == whole
