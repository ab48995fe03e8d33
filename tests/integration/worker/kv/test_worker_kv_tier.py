"""Groups of rank processes share a real Redis: KV computed by one group gives the same tokens in another."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.model_files.model import Model
from shared.flow.circuit import store_limits
from shared.messages import Accepted, Done
from tests.kits.engine.rank_threads import UNEVEN
from tests.kits.kv.kv_groups import ALWAYS, PROMPT, RedisIndex, ask, kv_engine, settled, usage_of
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, tokens_of
from tests.kits.worker.options import scheduler_limits

FOUR_KV_HEADS: dict[str, object] = {}  # those of the usual model


@pytest.mark.parametrize(
    ("model", "most", "temperature", "compression"),
    [
        (FOUR_KV_HEADS, 4, 0.0, "zstd"),
        (FOUR_KV_HEADS, 4, 1.0, "none"),
        (UNEVEN["nine heads on three"], 3, 1.0, "zstd"),
    ],
    indirect=["model"],
)
async def test_written_by_two_ranks_continued_by_one_and_by_more(  # noqa: PLR0917
    memory_bus: MemoryBus,
    model: Path,
    tiny: Model,
    index: RedisIndex,
    redis_url: str,
    most: int,
    temperature: float,
    compression: str,
) -> None:
    writer = kv_engine(model, redis_url, 2, compression=compression)
    async with Kit(memory_bus, writer, model=tiny, index=index) as kit:
        first = tokens_of(await kit.run(ask("a", PROMPT, temperature=temperature)))
        await settled(kit, index, 13)
        longer = PROMPT + first + [1, 2, 3]
        warm = await kit.run(ask("b", longer, temperature=temperature))
        assert usage_of(warm).fetched_tokens == 0
        await settled(kit, index, (len(longer) + 24 - 1) // 16)
        assert kit.metric("kv_dropped_blocks_total") == 0
    full = (len(longer) - 1) // 16
    for world in (1, 2, most):
        async with Kit(
            memory_bus, kv_engine(model, redis_url, world), f"g{world}", model=tiny, index=index, kv=ALWAYS
        ) as kit:
            frames = await kit.run(ask("c", longer, temperature=temperature))
            assert isinstance(frames[0], Accepted)
            assert frames[0].kv in ("fetch", "")  # not known yet on a busy machine
            assert kit.metric("kv_sources_total", source="fetch") == 1
            assert tokens_of(frames) == tokens_of(warm)
            assert usage_of(frames).fetched_tokens == full * 16
            assert usage_of(frames).cached_tokens == full * 16
            again = await kit.run(ask("d", longer, temperature=temperature))
            assert tokens_of(again) == tokens_of(warm)
            assert (usage_of(again).fetched_tokens, usage_of(again).cached_tokens) == (0, full * 16)
            await kit.all_free()


async def test_many_at_once_fetch_what_they_share(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    prompts = [PROMPT[: 60 + 11 * number] + [number] * 40 for number in range(8)]
    async with Kit(memory_bus, kv_engine(model, redis_url), model=tiny, index=index) as kit:
        expected = [
            tokens_of(await kit.run(ask(f"a{n}", prompt, temperature=n % 2)))
            for n, prompt in enumerate(prompts)
        ]
        await settled(kit, index, 20)
    small = kv_engine(model, redis_url, kv_cache_tokens=18 * 16)
    options: dict[str, Any] = {"kv": ALWAYS, "steps": scheduler_limits(32, 8, 16)}
    async with Kit(memory_bus, small, "g1", model=tiny, index=index, **options) as kit:
        for n, prompt in enumerate(prompts):
            await kit.ask(ask(f"b{n}", prompt, temperature=n % 2))
        got = [tokens_of(await kit.end_of(f"b{n}", 20)) for n in range(len(prompts))]
        assert got == expected
        assert kit.metric("kv_fetched_blocks_total") > 8
        await kit.all_free()


@pytest.mark.parametrize("sharing", ["tenant", "all"])
async def test_tenants_share_blocks_only_where_that_is_switched_on(  # noqa: PLR0917
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str, sharing: Any
) -> None:
    options: dict[str, Any] = {"kv": ALWAYS, "prefix_sharing": sharing}
    async with Kit(memory_bus, kv_engine(model, redis_url), model=tiny, index=index, **options) as kit:
        expected = tokens_of(await kit.run(ask("a", PROMPT)))
        await settled(kit, index, 13)
        other = msgspec.structs.replace(ask("b", PROMPT), tenant="other")
        assert usage_of(await kit.run(other)).cached_tokens == (192 if sharing == "all" else 0)
    async with Kit(memory_bus, kv_engine(model, redis_url), "g1", model=tiny, index=index, **options) as kit:
        third = msgspec.structs.replace(ask("c", PROMPT), tenant="third")
        frames = await kit.run(third)
        assert tokens_of(frames) == expected
        assert usage_of(frames).fetched_tokens == (192 if sharing == "all" else 0)
        assert kit.metric("kv_fetch_tokens_per_s") > 0 or sharing == "tenant"


async def test_a_flipped_byte_is_seen_computed_again_and_written_anew(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    async with Kit(memory_bus, kv_engine(model, redis_url), model=tiny, index=index) as kit:
        expected = tokens_of(await kit.run(ask("a", PROMPT)))
        await settled(kit, index, 12)
        names = kit.leader.kv_names(PROMPT)
    key = b"ryz:kv:data:" + names[4]
    stored: Any = await index.redis.hget(key, "2")
    value = bytearray(stored)
    value[len(value) // 2] ^= 1
    await index.redis.hset(key, "2", bytes(value))
    async with Kit(memory_bus, kv_engine(model, redis_url), "g1", model=tiny, index=index, kv=ALWAYS) as kit:
        frames = await kit.run(ask("b", PROMPT))
        assert tokens_of(frames) == expected
        assert usage_of(frames).fetched_tokens == 4 * 16
        assert kit.metric("kv_corrupt_blocks_total") == 1
        await kit.until(lambda: kit.metric("kv_stored_blocks_total") >= 8)
    async with Kit(memory_bus, kv_engine(model, redis_url), "g2", model=tiny, index=index, kv=ALWAYS) as kit:
        assert usage_of(await kit.run(ask("c", PROMPT))).fetched_tokens == 12 * 16


async def test_an_index_that_is_away_or_slow_costs_time_only(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    options: dict[str, Any] = {"kv": KVOptions(kv_fetch="always", circuit=store_limits(probe_s=0.05))}
    async with Kit(memory_bus, kv_engine(model, redis_url), model=tiny, index=index, **options) as kit:
        expected = tokens_of(await kit.run(ask("a", PROMPT)))
        await settled(kit, index, 12)
    async with Kit(memory_bus, kv_engine(model, redis_url), "g1", model=tiny, index=index, **options) as kit:
        index.delay_s = 0.5
        for number in range(4):
            prompt = [number + 100, *PROMPT]
            assert isinstance((await kit.run(ask(f"slow{number}", prompt)))[-1], Done)
        assert kit.metric("kv_store_up") == 0
        index.away, index.delay_s = True, 0.0
        assert tokens_of(await kit.run(ask("b", PROMPT))) == expected
        index.away = False
        await kit.until(lambda: kit.metric("kv_store_up") == 1)
        other = [9, *PROMPT]
        await kit.run(ask("c", other))
        assert kit.metric("kv_lookups_total", outcome="failed") >= 3


async def test_a_low_priority_sequence_moves_out_and_comes_back(
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str
) -> None:
    small = kv_engine(model, redis_url, kv_cache_tokens=20 * 16)
    options: dict[str, Any] = {"kv": ALWAYS, "steps": scheduler_limits(64, 8, 16)}
    async with Kit(memory_bus, small, model=tiny, index=index, **options) as kit:
        alone = tokens_of(await kit.run(ask("alone", [3] * 100, max_tokens=150)))
        fill = tokens_of(await kit.run(ask("fill", [4] * 260, max_tokens=30)))
        low = ask("low", [3] * 100, max_tokens=150)
        await kit.ask(low)
        await kit.until(lambda: len(tokens_of(kit.frames["low"])) > 60)
        high = ask("high", [5] * 260, max_tokens=30)
        high = msgspec.structs.replace(high, priority=5)
        await kit.ask(high)
        assert len(tokens_of(await kit.end_of("high"))) == len(fill)
        assert tokens_of(await kit.end_of("low")) == alone
        assert kit.metric("num_preemptions_total") >= 1
        assert kit.metric("kv_fetched_blocks_total") >= 8
        await kit.all_free()
