"""KV of latent attention, of a mixture and of sliding layers, shared by groups of unlike numbers of ranks."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.worker.model_files.model import Model
from tests.kits.engine.small_models import small_models
from tests.kits.families.models import make_family
from tests.kits.kv.kv_groups import ALWAYS, RedisIndex, ask, kv_engine, usage_of, write_turns
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, tokens_of
from tests.kits.worker.options import scheduler_limits

# latent attention has no kernels: where others have the cores, its 330 steps take minutes
pytestmark = pytest.mark.timeout(900)
# a tokenizer of bytes, and room for the prompts
CHANGES: dict[str, Any] = {"vocab_size": 256, "max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
MODELS = {"deepseek_v3": CHANGES | {"rope_parameters": YARN}, "mixtral": CHANGES, "gemma3": CHANGES}
model = small_models(
    {name: (name, changes) for name, changes in MODELS.items()}, make=make_family, of_bytes=True
)


async def test_written_by_two_ranks_continued_by_one_and_by_four(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    async with Kit(memory_bus, kv_engine(model, redis_url, 2), model=tiny, index=index) as kit:
        longer, warm = await write_turns(kit, index)
    full = (len(longer) - 1) // 16
    for world in (1, 4):
        engine = kv_engine(model, redis_url, world)
        async with Kit(memory_bus, engine, f"g{world}", model=tiny, index=index, kv=ALWAYS) as kit:
            frames = await kit.run(ask("c", longer, temperature=1.0))
            assert tokens_of(frames) == warm
            assert usage_of(frames).fetched_tokens == full * 16
            await kit.all_free()


async def test_a_sequence_that_moves_out_comes_back(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    small = kv_engine(model, redis_url, kv_cache_tokens=20 * 16)
    options: dict[str, Any] = {"kv": ALWAYS, "steps": scheduler_limits(64, 8, 16)}
    async with Kit(memory_bus, small, model=tiny, index=index, **options) as kit:
        alone = tokens_of(await kit.run(ask("alone", [3] * 100, max_tokens=150)))
        await kit.ask(ask("low", [3] * 100, max_tokens=150))
        await kit.until(lambda: len(tokens_of(kit.frames["low"])) > 60)
        await kit.ask(msgspec.structs.replace(ask("high", [5] * 260, max_tokens=30), priority=5))
        assert len(tokens_of(await kit.end_of("high"))) == 30
        assert tokens_of(await kit.end_of("low")) == alone
        assert kit.metric("num_preemptions_total") >= 1
        assert kit.metric("kv_fetched_blocks_total") >= 8
        await kit.all_free()
