"""The KV tier of a whole leader: the source of a prompt's KV, and the effects of store failures."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from services.worker.leader.kv_tier.kv_options import KVOptions
from shared import codec, kv_hash
from shared.messages import Accepted, Done, Failed, GenerateRequest, Usage
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.kv_tier import QUICK, Group, Store, store_state
from tests.kits.worker.leader import Kit, chat, tokens_of

PROMPT = [(7 * i) % 251 for i in range(200)]


def ask(name: str, tokens: list[int] = PROMPT, **fields: Any) -> GenerateRequest:
    sampling = {"max_tokens": 4, "ignore_eos": True, **fields.pop("sampling", {})}
    return chat(name, prompt_token_ids=codec.pack_tokens(tokens), sampling=sampling, **fields)


def usage_of(frames: Any) -> Usage:
    assert isinstance(frames[-1], Done)
    return frames[-1].usage


def source_of(frames: Any) -> str:
    assert isinstance(frames[0], Accepted)
    assert sum(isinstance(frame, Accepted) for frame in frames) == 1
    return frames[0].kv


@pytest.fixture
async def store(memory_bus: MemoryBus) -> Store:
    """A store that has the prompt's blocks."""
    async with Group(memory_bus, group="source") as kit:
        await kit.run(ask("s"))
        await kit.until_held(12)
        return kit.blocks


async def test_where_a_prompt_has_its_kv_from(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store) as kit:
        fetched = await kit.run(ask("a"))
        assert source_of(fetched) == "fetch"
        assert (usage_of(fetched).fetched_tokens, usage_of(fetched).cached_tokens) == (192, 192)
        warm = await kit.run(ask("b", [*PROMPT, 1, 2]))
        assert (source_of(warm), usage_of(warm).fetched_tokens) == ("warm", 0)
        assert kit.index.finds == 1
        fresh = await kit.run(ask("c", [3] * 100))
        assert source_of(fresh) == "new"
        short = await kit.run(ask("d", [4] * 20))
        assert source_of(short) == "new"
        assert kit.index.finds == 2
        forced = await kit.run(ask("e", [*PROMPT[:32], *[5] * 100], kv="recompute"))
        assert source_of(forced) == "recompute"
        assert tokens_of(fetched)
        assert kit.state["state"] == "used"
        assert kit.metric("kv_store_up") == 1
        await kit.all_free()


async def test_what_an_engine_without_a_store_says(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        frames = await kit.run(ask("a"))
        assert source_of(frames) == ""
        assert store_state(kit.leader) == {"state": "off"}
        assert kit.leader.detail()["degraded"] == []
        assert kit.metric("kv_lookups_total", outcome="failed") == 0


async def test_lookups_that_fail_open_the_circuit_until_a_probe_gets_through(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        kit.index.away = True
        for number in range(5):
            frames = await kit.run(ask(f"a{number}", [number] * 100))
            assert source_of(frames) == "new"
        assert kit.metric("kv_lookups_total", outcome="failed") == 3
        assert kit.state["state"] == "away"
        assert kit.metric("kv_store_up") == 0
        assert kit.leader.detail()["degraded"] == ["kv_store"]
        assert not kit.leader.parts.kv_tier.rates().store
        kit.index.away = False
        await kit.until(lambda: kit.metric("kv_store_up") == 1)
        assert kit.metric("kv_lookups_total", outcome="failed") == 3, "probes are no lookups"
        assert (kit.state["state"], kit.state["losses"]) == ("used", 1)
        assert kit.leader.parts.kv_tier.rates().store


async def test_a_lookup_that_takes_too_long_costs_no_more_than_its_limit(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        kit.index.delay_s = 5.0
        frames = await kit.run(ask("a"))
        assert source_of(frames) == ""  # the lookup did not end in time
        assert kit.metric("kv_lookups_total", outcome="failed") == 1


async def test_fetches_that_hang_are_given_up_and_late_answers_count_for_nothing(
    memory_bus: MemoryBus, store: Store
) -> None:
    async with Group(memory_bus, store, kv=replace(QUICK, kv_write=False)) as kit:
        for number in range(3):
            kit.ranks.hangs = True
            frames = await kit.run(ask(f"a{number}", PROMPT[: 100 - 16 * number] + [number] * 40))
            assert usage_of(frames).fetched_tokens == 0
            assert kit.state["state"] == ("away" if number == 2 else "used")
            if number < 2:
                kit.ranks.release()
                await kit.all_free()
                kit.drop(list(store))
        assert kit.metric("kv_fetches_total", outcome="given_up") == 3
        assert kit.metric("kv_fetches_total", outcome="whole") == 0
        before = kit.ranks.probes
        await kit.until(lambda: kit.ranks.probes > before)
        assert kit.state["state"] == "away", "the ranks do not answer yet"
        kit.ranks.release()
        await kit.until(lambda: kit.state["state"] == "used")
        await kit.all_free()


async def test_what_comes_late_is_of_use_to_the_next_one(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store) as kit:
        kit.ranks.hangs = True
        await kit.ask(ask("a"))
        await kit.until(lambda: bool(kit.ranks.orders))
        kit.leader.parts.table.cancel_request("a", "")
        await kit.end_of("a")
        load = kit.leader.load()
        assert load.free_blocks == load.total_blocks - 13, "ranks may still write there"
        kit.ranks.release()
        await kit.all_free()
        frames = await kit.run(ask("b"))
        assert (source_of(frames), usage_of(frames).cached_tokens) == ("warm", 192)


async def test_errors_of_ranks_open_the_circuit_but_a_full_queue_does_not(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        kit.ranks.error, kit.ranks.crowded = "too much is waiting", True
        for number in range(4):
            await kit.run(ask(f"a{number}", [number] * 40))
        await kit.until(lambda: kit.metric("kv_dropped_blocks_total") >= 8)
        assert kit.state["state"] == "used"
        kit.ranks.crowded = False
        for number in range(4):
            await kit.run(ask(f"b{number}", [9, *[number] * 40]))
        await kit.until(lambda: kit.state["state"] == "away")
        kit.ranks.error = ""
        await kit.until(lambda: kit.state["state"] == "used")
        await kit.run(ask("c", [8] * 100))
        await kit.until_held(6)


async def test_damaged_blocks_are_computed_written_anew_and_not_fetched_before(
    memory_bus: MemoryBus, store: Store
) -> None:
    async with Group(memory_bus, store) as kit:
        names = kit.leader.kv_names(PROMPT)
        kit.ranks.corrupt = {names[5]}
        kit.leader.parts.kv_tier.write_behind.writes = False  # type: ignore[union-attr]
        frames = await kit.run(ask("a"))
        assert usage_of(frames).fetched_tokens == 5 * 16
        assert kit.metric("kv_corrupt_blocks_total") == 1
        assert kit.metric("kv_fetches_total", outcome="part") == 1
        scheduler = kit.leader.parts.engine.scheduler
        assert scheduler is not None
        scheduler.blocks.drop(names)
        kit.index.finds = 0
        kit.leader.parts.kv_tier.health.apply()  # writing is enabled again
        again = await kit.run(ask("b"))
        assert usage_of(again).fetched_tokens == 5 * 16
        assert kit.index.finds == 1
        assert kit.metric("kv_corrupt_blocks_total") == 1, "no sequence asked for it"
        kit.ranks.corrupt = set()
        await kit.until(lambda: scheduler.write_behind.num_known_of([names[5]]) == 1)
        scheduler.blocks.drop(names)
        assert usage_of(await kit.run(ask("c"))).fetched_tokens == 192


async def test_what_the_store_lost_is_written_again(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        await kit.run(ask("a"))
        await kit.until_held(12)
        lost = dict(kit.blocks)
        kit.blocks.clear()
        names = kit.leader.kv_names(PROMPT)
        scheduler = kit.leader.parts.engine.scheduler
        assert scheduler is not None
        scheduler.blocks.drop(names)
        assert source_of(await kit.run(ask("b"))) == "new"
        await kit.until(lambda: kit.blocks.keys() >= lost.keys())


async def test_what_is_here_and_was_never_written_is_written_when_it_is_used(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        kit.ranks.error, kit.ranks.crowded = "too much is waiting", True
        await kit.run(ask("a"))
        await kit.until(lambda: kit.metric("kv_dropped_blocks_total") >= 12)
        kit.ranks.error = ""
        assert source_of(await kit.run(ask("b"))) == "warm"
        await kit.until_held(12)


async def test_a_deadline_passes_while_blocks_are_fetched(memory_bus: MemoryBus, store: Store) -> None:
    slow = KVOptions(kv_fetch="always", kv_fetch_timeout_s=5.0)
    async with Group(memory_bus, store, kv=slow) as kit:
        kit.ranks.hangs = True
        await kit.ask(ask("a"), headers={"Ryz-Timeout-Ms": "150"})
        frames = await kit.end_of("a")
        assert isinstance(frames[-1], Failed)
        assert frames[-1].code == "deadline_exceeded"
        kit.ranks.release()
        await kit.all_free()


async def test_an_engine_that_fails_amid_a_fetch_fails_the_request_once(
    memory_bus: MemoryBus, store: Store
) -> None:
    async with Group(memory_bus, store) as kit:
        kit.expected_errors = {"the engine failed"}
        kit.ranks.hangs = True
        await kit.ask(ask("a"))
        await kit.until(lambda: bool(kit.ranks.orders))
        warming = asyncio.create_task(kit.leader.parts.kv_tier.fetch_blocks(kit.leader.kv_names(PROMPT[:64])))
        await kit.until(lambda: len(kit.ranks.orders) == 2)
        kit.ranks.die()
        frames = await kit.end_of("a")
        assert isinstance(frames[-1], Failed)
        assert source_of(frames) == "fetch"
        assert await warming == 0
        kit.ranks.hangs = False
        await kit.until(lambda: kit.leader.state == "ready")
        assert usage_of(await kit.run(ask("b"))).fetched_tokens == 192
        await kit.all_free()


async def test_an_engine_that_fails_amid_a_lookup_fails_the_request_once(
    memory_bus: MemoryBus,
) -> None:
    patient = KVOptions(kv_lookup_timeout_s=1.0)
    async with Group(memory_bus, kv=patient) as kit:
        kit.expected_errors = {"the engine failed"}
        kit.index.delay_s = 0.1
        await kit.ask(ask("a"))
        await kit.until(lambda: kit.index.finds == 1)
        kit.ranks.die()
        frames = await kit.end_of("a")
        assert isinstance(frames[-1], Failed)
        await kit.until(lambda: kit.leader.state == "ready")
        kit.index.delay_s = 0.0
        assert source_of(await kit.run(ask("b"))) == "new"


async def test_ranks_that_take_no_order_are_told_of_by_the_next_step(
    memory_bus: MemoryBus, store: Store
) -> None:
    async with Group(memory_bus, store) as kit:
        kit.expected_errors = {"the engine failed"}
        kit.ranks.refuses = True
        await kit.ask(ask("a"))
        await asyncio.sleep(0.02)
        kit.ranks.die()
        assert isinstance((await kit.end_of("a"))[-1], Failed)
        kit.ranks.refuses = False
        await kit.until(lambda: kit.leader.state == "ready")
        assert usage_of(await kit.run(ask("b"))).fetched_tokens == 192


async def test_choices_of_a_request_share_a_fetch(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store) as kit:
        frames = await kit.run(ask("a", sampling={"n": 3}))
        assert len(kit.ranks.orders) == 1
        assert tokens_of(frames, 0) == tokens_of(frames, 2)
        await kit.all_free()


async def test_a_request_that_is_over_when_it_comes_leaves_nothing(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        resume = {"token_ids": [codec.pack_tokens([1, 2, 3, 4])], "next_seq": 5}
        frames = await kit.run(ask("a", resume=resume))
        assert isinstance(frames[-1], Done)
        await kit.until(lambda: not kit.leader.parts.kv_tier.ownership.num_held)


async def test_a_bug_in_starting_a_request_answers_it_once(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(memory_bus) as kit:
        kit.expected_errors = {"request failed", "the group fails its own request"}

        def broken(generation: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(kit.leader.parts.kv_tier, "begin_generation", broken)
        for name, tokens in (("short", [1] * 20), ("long", PROMPT)):
            frames = await kit.run(ask(name, tokens))
            assert isinstance(frames[-1], Failed)
            assert (source_of(frames), frames[-1].code) == ("new", "internal")
        await kit.all_free()


async def test_blocks_of_a_session_are_held_for_it(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        await kit.run(chat("a", "x" * 100, session={"session_id": "s", "given": True}))
        await kit.until(lambda: any(one.session_id == "s" for one in kit.index.held))
        assert {one.tenant for one in kit.index.held} == {"default"}
        assert all(one.parts == 2 for one in kit.index.held)


async def test_no_room_in_the_store_pauses_writing(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        tier = kit.leader.parts.kv_tier
        tier.health.pause_writes(0.05)
        assert kit.state["writes"] is False
        frames = await kit.run(ask("a"))
        assert source_of(frames) == "new"
        await kit.until(lambda: kit.state["writes"] is True)
        assert kit.metric("kv_store_up") == 1


async def test_gets_blocks_for_a_session_that_will_come(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store) as kit:
        tier = kit.leader.parts.kv_tier
        names = kit.leader.kv_names(PROMPT)
        assert await tier.fetch_blocks([]) == 0
        assert await tier.fetch_blocks([bytes(16)]) == 0
        kit.ranks.hangs = True
        assert await tier.fetch_blocks(names) == 0, "it takes too long"
        kit.ranks.release()
        await kit.all_free()
        assert await tier.fetch_blocks(names) == 0, "it is all there"
        kit.drop(names)
        assert await tier.fetch_blocks(names) == 12
        kit.index.away = True
        for _ in range(3):
            assert await tier.fetch_blocks([kv_hash.root("x", "y", "z")]) == 0
        assert await tier.fetch_blocks(names) == 0
        await kit.all_free()
    assert await tier.fetch_blocks(names) == 0


async def test_no_blocks_for_a_session_where_there_is_no_place(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store, engine={"num_blocks": 8}) as kit:
        assert await kit.leader.parts.kv_tier.fetch_blocks(kit.leader.kv_names(PROMPT)) == 0
        await kit.all_free()


async def test_fetches_that_ranks_cannot_do_open_the_circuit(memory_bus: MemoryBus, store: Store) -> None:
    async with Group(memory_bus, store, kv=replace(QUICK, kv_write=False)) as kit:
        kit.ranks.error = "the KV store is away"
        for number in range(3):
            frames = await kit.run(ask(f"a{number}", PROMPT[: 160 - 32 * number] + [number] * 40))
            assert usage_of(frames).fetched_tokens == 0
            kit.drop(list(store))
        assert kit.metric("kv_fetches_total", outcome="nothing") == 3
        assert kit.state["state"] == "away"
        kit.ranks.error = ""
        await kit.until(lambda: kit.state["state"] == "used")
        assert usage_of(await kit.run(ask("b"))).fetched_tokens == 192


async def test_a_lookup_without_answer_says_nothing_of_what_is_stored(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus) as kit:
        await kit.run(ask("a"))
        await kit.until_held(12)
        names = kit.leader.kv_names(PROMPT)
        kit.drop(names[6:])
        kit.index.away = True
        written = kit.metric("kv_stored_blocks_total")
        await kit.run(ask("b"))
        assert kit.metric("kv_lookups_total", outcome="failed") == 1
        await asyncio.sleep(0.02)
        assert kit.metric("kv_stored_blocks_total") == written


async def test_a_leader_that_ends_tells_what_it_has_written(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus, kv=replace(QUICK, commit_interval_s=100.0)) as kit:
        await kit.run(ask("a"))
        await kit.until(lambda: len(kit.blocks) == 12)
        assert kit.index.held == []
    assert [len(one.names) // 16 for one in kit.index.held] == [12]


async def test_a_leader_that_ends_does_not_wait_for_who_is_away(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus, kv=replace(QUICK, commit_interval_s=100.0)) as kit:
        await kit.run(ask("a"))
        await kit.until(lambda: len(kit.blocks) == 12)
        kit.index.away = True
    assert kit.index.held == []
