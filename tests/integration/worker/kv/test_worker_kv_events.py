"""A follower's index equals the cache of a leader: evictions, lost engines, killed ranks, restarts, users."""

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.worker.model_files.model import Model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.orchestrator.rank_engine import RankEngine
from shared.bus.nats import NatsBus
from shared.client.kv_events import KVEventFollower, block_names
from shared.codec import pack_tokens
from tests.kits.engine.rank_options import rank_options
from tests.kits.kv.kv_event_world import SetContents, block
from tests.kits.servers import GuardedNats
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import Kit, chat, null_engine
from tests.kits.worker.options import scheduler_limits

QUICK = RestartPauses(first_s=0.05)
EVICTING = 24  # blocks of a cache that is smaller than what the prompts need


def prompt(number: int) -> list[int]:
    """Prompts of some blocks, of which three begin alike."""
    return [number // 3 + 1] * 48 + [number + 7] * (16 * (1 + number % 4))


async def run(kit: Kit, name: str, number: int) -> None:
    sampling = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
    await kit.run(chat(name, prompt_token_ids=pack_tokens(prompt(number)), sampling=sampling))


def cache(kit: Kit) -> set[bytes]:
    """What the leader finds when a prompt comes."""
    scheduler = kit.leader.parts.engine.scheduler
    return set() if scheduler is None else set(scheduler.blocks.cached_names())


async def equals(follower: KVEventFollower, kit: Kit) -> None:
    """Waits until the index has heard all, and compares."""
    await follower.until_current(PATIENCE_S)
    assert follower.index.names(kit.group) == cache(kit)
    group = follower.index.groups[kit.group]
    assert group.held == len(cache(kit))
    for number in range(12):
        names = block_names(group, prompt(number), "default")
        assert names == kit.leader.kv_names(prompt(number))
        found = kit.leader.parts.engine.scheduler
        count = 0 if found is None else found.blocks.num_found(names)
        assert follower.index.find(names).get(kit.group, 0) == count


@asynccontextmanager
async def following(bus: NatsBus) -> AsyncIterator[KVEventFollower]:
    async with KVEventFollower(bus, renew_s=0.5) as follower:
        yield follower


async def test_evictions_are_followed(nats_bus: NatsBus) -> None:
    chance = random.Random(3)
    kit = Kit(nats_bus, null_engine(blocks=EVICTING, context=256))
    async with kit, following(nats_bus) as follower:
        for number in range(30):
            await run(kit, f"r{number}", chance.randrange(12))
            if number % 5 == 4:
                await equals(follower, kit)
        assert len(cache(kit)) <= EVICTING
        assert follower.index.find(kit.leader.kv_names(prompt(99))) == {}


async def test_a_session_that_is_deleted_leaves_the_index(nats_bus: NatsBus) -> None:
    async with Kit(nats_bus) as kit, following(nats_bus) as follower:
        await run(kit, "a", 1)
        await equals(follower, kit)
        names = kit.leader.kv_names(prompt(1))
        kit.leader.parts.engine.scheduler.blocks.drop(names)  # type: ignore[union-attr]
        await until(lambda: follower.index.find(names) == {})
        await equals(follower, kit)


async def test_a_lost_engine_is_another_epoch(nats_bus: NatsBus) -> None:
    engine = null_engine()
    async with Kit(nats_bus, engine, back_off=QUICK) as kit, following(nats_bus) as follower:
        kit.expected_errors = {"the engine failed"}
        for number in range(4):
            await run(kit, f"r{number}", number)
            await equals(follower, kit)
            epoch, names = follower.index.groups[kit.group].epoch, kit.leader.kv_names(prompt(number))
            assert follower.index.find(names)
            await engine.stop()
            await kit.ask(chat(f"killer{number}"))
            await kit.end_of(f"killer{number}")
            await until(lambda names=names: follower.index.find(names) == {})  # type: ignore[misc]
            await kit.until(lambda: kit.leader.state == "ready")
            await equals(follower, kit)
            assert follower.index.groups[kit.group].epoch != epoch


async def test_a_leader_of_the_same_name_is_another_epoch(nats_bus: NatsBus) -> None:
    async with following(nats_bus) as follower:
        for number in range(3):
            async with Kit(nats_bus, instance_id=f"i{number}") as kit:
                await run(kit, "r", number)
                await equals(follower, kit)
                gone = kit.leader.kv_names(prompt(number))
        await until(lambda: "g0" not in follower.index.groups)
        assert follower.index.find(gone) == {}


async def test_killed_ranks(nats_bus: NatsBus, model: Path, tiny: Model) -> None:
    options = rank_options(
        model=model, tensor_parallel=2, threads=1, kv_cache_tokens=EVICTING * 16, step_timeout_s=10.0
    )
    steps = scheduler_limits(64, 8, 16)
    kit = Kit(nats_bus, RankEngine(options), model=tiny, back_off=QUICK, steps=steps)
    async with kit, following(nats_bus) as follower:
        kit.expected_errors = {"the engine failed"}
        for round_ in range(3):
            for number in range(6):
                await run(kit, f"r{round_}-{number}", number)
            await equals(follower, kit)
            ranks: Any = kit.leader.detail()["ranks"]
            os.kill(ranks[round_ % 2]["pid"], signal.SIGKILL)
            await kit.until(lambda: kit.leader.state == "recovering")
            await until(lambda: follower.index.names("g0") == frozenset())
            await kit.until(lambda: kit.leader.state == "ready")
            await equals(follower, kit)


async def test_the_user_for_routers_of_others_may_follow(tmp_path: Path) -> None:
    server = GuardedNats(tmp_path)
    server.start()
    try:
        bus = await NatsBus.connect(server.url("worker"), name="worker")
        kit = Kit(bus, kv_contents=(contents := SetContents()))
        async with kit, KVEventFollower.connect(server.url("indexer")) as follower:
            contents.reset()
            for number in range(5000):
                contents.store(block(number))
            await follower.until_current(PATIENCE_S)
            assert follower.index.names(kit.group) == contents.blocks
            contents.remove(block(7))
            await until(lambda: block(7) not in follower.index.names(kit.group))
        await bus.close()
    finally:
        server.stop()


@pytest.mark.parametrize("sharing", ["all", "off"])
async def test_groups_say_whose_prompts_share_blocks(nats_bus: NatsBus, sharing: Any) -> None:
    async with Kit(nats_bus, prefix_sharing=sharing) as kit, following(nats_bus) as follower:
        await run(kit, "a", 1)
        await follower.until_current(PATIENCE_S)
        group = follower.index.groups["g0"]
        assert group.sharing == sharing
        names = block_names(group, prompt(1), "another tenant")
        assert follower.index.find(names) == ({"g0": len(names)} if sharing == "all" else {})
        assert bool(names) == (sharing == "all")
