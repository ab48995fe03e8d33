"""Rank processes load adapters beside steps, compute with several in one step, and say why one is refused."""

import asyncio
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from services.worker.adapters.inspection import inspect_adapter
from services.worker.engine.native.build import targets
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.adapters import NO_ADAPTER, AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.adapters.comparisons import adapter_files
from tests.kits.adapters.peft_adapters import peft_logits
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_options import rank_options
from tests.kits.families.models import family_model, text

FAMILY, RANK, COUNT = "llama", 16, 12


class Leader:
    """Plans steps as a leader would, and orders adapters."""

    def __init__(self, engine: RankEngine, model: Path) -> None:
        self.engine = engine
        self.model = model
        self.step_id = 0
        self._ids = itertools.count(1)
        self._blocks = Blocks(256)

    async def load(self, slot: int, source: Path, fingerprint: str = "") -> AdapterLoaded:
        found = fingerprint or inspect_adapter(source, self.model).fingerprint
        order = LoadAdapter(
            order_id=next(self._ids),
            slot=slot,
            source=str(source),
            fingerprint=found,
            after_step=self.step_id,
        )
        return await self.engine.load_adapter(order)

    async def empty(self, slot: int) -> AdapterLoaded:
        order = LoadAdapter(
            order_id=next(self._ids), slot=slot, source="", fingerprint="", after_step=self.step_id
        )
        return await self.engine.load_adapter(order)

    async def generate(self, slots: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """The greedy tokens after a prompt for each slot, all in one batch."""
        made: dict[int, list[int]] = {slot: [] for slot in slots}
        ids = {next(self._ids): slot for slot in slots}
        admit = [new_sequence(seq_id, slots[slot], adapter=slot) for seq_id, slot in ids.items()]
        chunks = [self._blocks.chunk(seq_id, 0, slots[slot]) for seq_id, slot in ids.items()]
        for _ in range(COUNT):
            self.step_id += 1
            result = await self.engine.submit(StepPlan(step_id=self.step_id, admit=admit, chunks=chunks))
            admit = []
            for sampled in result.sampled:
                assert not sampled.error
                made[ids[sampled.seq_id]].append(sampled.token_id)
            chunks = [
                self._blocks.chunk(seq_id, len(slots[slot]) + len(made[slot]) - 1, made[slot][-1:])
                for seq_id, slot in ids.items()
            ]
        self.step_id += 1
        await self.engine.submit(StepPlan(step_id=self.step_id, release=list(ids)))
        for seq_id in ids:
            self._blocks.release(seq_id)
        return made


@asynccontextmanager
async def running(world: int, kernels: str = "plain") -> AsyncIterator[tuple[Leader, EngineInfo]]:
    model = family_model(FAMILY).directory
    options = {"threads": 1, "kv_cache_tokens": 8192, "kernels": kernels, "precision": "fp32"}
    engine = RankEngine(rank_options(model=model, tensor_parallel=world, **options))
    try:
        yield Leader(engine, model), await engine.start()
    finally:
        await engine.stop()


def likeliest(prompt: list[int], source: Path | None) -> list[int]:
    """What PEFT, or transformers for the base, continues a prompt with."""
    tokens = list(prompt)
    for _ in range(COUNT):
        logits = peft_logits(FAMILY, source, [tokens])[0, -1]
        best = torch.topk(logits, 2)
        assert best.values[0] - best.values[1] > 1e-4, "choose another prompt"
        tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kernels", ["plain", *(["native"] if targets() else [])])
@pytest.mark.parametrize("world", [1, 2])
async def test_loaded_adapters_continue_texts_as_peft_does(world: int, kernels: str) -> None:
    files, prompt = adapter_files(FAMILY, RANK), text("a")[:20]
    async with running(world, kernels) as (leader, info):
        assert info.adapters
        first = await leader.load(0, files["a"])
        assert first.error == ""
        size = inspect_adapter(files["a"], leader.model, world).num_bytes
        # the kernels pad, and keep in bf16 what that holds without loss
        assert first.num_bytes == size if kernels == "plain" else 0.4 * size < first.num_bytes < 2 * size
        # while the second one is read, the first one is used
        loading = asyncio.ensure_future(leader.load(7, files["b"]))
        alone = await leader.generate({0: prompt})
        assert (await loading).error == ""
        together = await leader.generate({0: prompt, NO_ADAPTER: prompt, 7: prompt})
    assert alone[0] == together[0] == likeliest(prompt, files["a"])
    assert together[7] == likeliest(prompt, files["b"])
    assert together[NO_ADAPTER] == likeliest(prompt, None)
    assert together[0] != together[NO_ADAPTER]


async def test_another_adapter_in_a_slot_replaces_the_one_before() -> None:
    files, prompt = adapter_files(FAMILY, RANK), text("b")[:20]
    async with running(2) as (leader, _):
        await leader.load(1, files["a"])
        before = await leader.generate({1: prompt})
        await leader.load(1, files["b"])
        after = await leader.generate({1: prompt})
        await leader.load(2, files["b"])
        again = await leader.generate({2: prompt})
    assert after[1] == again[2] != before[1]


async def test_what_cannot_be_loaded_is_said_and_leaves_the_rank_well(tmp_path: Path) -> None:
    files, prompt = adapter_files(FAMILY, RANK), text("a")[:20]
    changed = shutil.copytree(files["a"], tmp_path / "changed")
    async with running(2) as (leader, _):
        before = await leader.generate({NO_ADAPTER: prompt})
        refused = await leader.load(0, changed, fingerprint="0" * 32)
        assert "has changed since it was registered" in refused.error
        (changed / "adapter_model.safetensors").unlink()
        missing = await leader.load(0, changed, fingerprint="0" * 32)
        assert missing.error == (
            f"{changed} holds no adapter_model.safetensors; an adapter is a PEFT directory or a GGUF file"
        )
        assert await leader.generate({NO_ADAPTER: prompt}) == before


async def test_a_sequence_of_an_empty_slot_is_a_bug_of_the_leader() -> None:
    files, prompt = adapter_files(FAMILY, RANK), text("a")[:20]
    async with running(1) as (leader, _):
        await leader.load(0, files["a"])
        await leader.generate({0: prompt})
        assert (await leader.empty(0)).error == ""
        with pytest.raises(EngineFailed, match="adapter slot 0, which is empty"):
            await leader.generate({0: prompt})


async def test_a_rank_that_dies_ends_the_orders_of_adapters(tmp_path: Path) -> None:
    missing = tmp_path / "adapter.gguf"
    async with running(2) as (leader, info):
        os.kill(info.ranks[1].pid, signal.SIGSTOP)  # so that it does not answer
        loading = asyncio.ensure_future(leader.load(0, missing, fingerprint="0" * 32))
        await asyncio.sleep(0)  # the order is sent
        os.kill(info.ranks[1].pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="rank 1"):
            await loading
        with pytest.raises(EngineFailed):
            await leader.load(0, missing, fingerprint="0" * 32)
