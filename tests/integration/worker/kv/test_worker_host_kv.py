"""Groups of rank processes share the memory of the host: the same tokens, without asking the store."""

import os
from dataclasses import replace
from pathlib import Path

from services.worker.model_files.model import Model
from shared.messages import Accepted
from tests.kits.kv.kv_groups import ALWAYS, PROMPT, RedisIndex, ask, kv_engine, settled, usage_of, write_turns
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, tokens_of

MIB = 2**20


async def test_what_two_ranks_wrote_another_group_copies_also_after_both_ranks_died(  # noqa: PLR0917
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "pool")
    on_host = replace(ALWAYS, kv_host_dir=folder)
    writer = kv_engine(model, redis_url, 2, host_dir=folder)
    async with Kit(memory_bus, writer, model=tiny, index=index, kv=on_host) as kit:
        longer, warm = await write_turns(kit, index)
    full = (len(longer) - 1) // 16 * 16
    await index.redis.flushdb()  # the store has nothing from here on
    reader = kv_engine(model, redis_url, 1, host_dir=folder, host_owner="g1")
    async with Kit(memory_bus, reader, "g1", model=tiny, index=index, kv=on_host) as kit:
        frames = await kit.run(ask("c", longer, temperature=1.0))
        assert isinstance(frames[0], Accepted)
        assert frames[0].kv == "fetch"
        assert tokens_of(frames) == warm
        assert (usage_of(frames).fetched_tokens, usage_of(frames).cached_tokens) == (full, full)
        assert kit.metric("kv_host_lookups_total") == 1
        assert kit.metric("kv_host_blocks_total") == full // 16
        asked = [kit.metric("kv_lookups_total", outcome=outcome) for outcome in ("found", "unknown")]
        assert asked == [0, 0], "the KV state service was not asked"
        again = await kit.run(ask("d", longer, temperature=1.0))
        assert tokens_of(again) == warm
        kit.leader.parts.kv_tier.prefixes.host.revoke(kit.leader.kv_names(longer))
        assert kit.leader.parts.kv_tier.prefixes.host.count(kit.leader.kv_names(longer), 4) == 0
        await kit.all_free()


async def test_a_ring_that_is_too_small_costs_time_and_no_token(  # noqa: PLR0917
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "pool")
    on_host = replace(ALWAYS, kv_host_dir=folder)
    prompts = [[number, *PROMPT] for number in range(4)]
    writer = kv_engine(model, redis_url, 2, host_dir=folder, host_bytes=MIB // 4)
    async with Kit(memory_bus, writer, model=tiny, index=index, kv=on_host) as kit:
        expected = [tokens_of(await kit.run(ask(f"a{n}", prompt))) for n, prompt in enumerate(prompts)]
        await settled(kit, index, 4 * 13)
        assert sum(file.stat().st_size for file in os.scandir(folder)) <= MIB // 2
    reader = kv_engine(model, redis_url, 2, host_dir=folder, host_owner="g1", host_bytes=2**12)
    async with Kit(memory_bus, reader, "g1", model=tiny, index=index, kv=on_host) as kit:
        got = [await kit.run(ask(f"b{n}", prompt)) for n, prompt in enumerate(prompts)]
        assert [tokens_of(frames) for frames in got] == expected
        fetched = kit.metric("kv_fetched_blocks_total")
        assert 0 < kit.metric("kv_host_blocks_total") < fetched, "the others came from the store"
        await kit.all_free()


async def test_the_store_gets_blocks_that_waited_for_the_end_of_decoding(  # noqa: PLR0917
    memory_bus: MemoryBus, model: Path, tiny: Model, index: RedisIndex, redis_url: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "pool")
    engine = kv_engine(model, redis_url, 2, host_dir=folder, host_lag_s=600.0)
    async with Kit(
        memory_bus, engine, model=tiny, index=index, kv=replace(ALWAYS, kv_host_dir=folder)
    ) as kit:
        await kit.run(ask("a", PROMPT, temperature=1.0))
        await settled(kit, index, 13)
