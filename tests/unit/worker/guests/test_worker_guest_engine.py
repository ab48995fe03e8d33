"""A guest behind the engine port: when steps end, what opens and closes streams, and how it fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import GuestFacts, GuestPart
from services.worker.rank_protocol.adapters import LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.rank_protocol.kv_messages import FetchBlocks
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan, StepResult
from shared.messages import EmbeddingOptions
from tests.kits.engine.plans import new_sequence
from tests.kits.guests.scripted import ScriptedGuest

PROMPT = [1, 2, 3]


@pytest.fixture
def guest() -> ScriptedGuest:
    return ScriptedGuest()


@pytest.fixture
async def engine(guest: ScriptedGuest) -> AsyncIterator[GuestEngine]:
    engine = GuestEngine(guest, max_running=4, start_timeout_s=60.0)
    await engine.start()
    yield engine
    await engine.stop()


def chunk(seq_id: int, start: int, token_ids: list[int], *, sample: bool = True) -> ScheduledChunk:
    return ScheduledChunk(seq_id=seq_id, start=start, token_ids=token_ids, sample=sample)


def first(step_id: int, *seq_ids: int) -> StepPlan:
    """Admits sequences and computes their prompts."""
    admit = [new_sequence(seq_id, PROMPT, max_tokens=5) for seq_id in seq_ids]
    return StepPlan(step_id=step_id, admit=admit, chunks=[chunk(one, 0, PROMPT) for one in seq_ids])


def again(step_id: int, *seq_ids: int) -> StepPlan:
    """Asks for the next token of sequences."""
    return StepPlan(step_id=step_id, chunks=[chunk(one, 3, [9]) for one in seq_ids])


def tokens(result: StepResult) -> list[tuple[int, int]]:
    return [(one.seq_id, one.token_id) for one in result.sampled]


async def test_a_step_gathers_tokens_for_a_moment_after_the_first(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    step = engine.submit(first(1, 1, 2, 3))
    await asyncio.sleep(0)
    assert not step.done()
    guest.bring(3)
    await asyncio.sleep(0)
    guest.bring(1)
    assert not step.done()
    result = await step
    assert result.step_id == 1
    assert tokens(result) == [(1, 100), (3, 100)]


async def test_a_step_ends_at_once_when_all_sequences_have_a_token(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    step = engine.submit(first(1, 1, 2))
    guest.bring(2, 2)
    guest.bring(1)
    assert step.done()
    assert tokens(await step) == [(1, 100), (2, 100)]


async def test_more_tokens_of_a_sequence_wait_for_the_steps_that_follow(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    step = engine.submit(first(1, 1))
    guest.bring(1, 3)
    assert tokens(await step) == [(1, 100)]
    for step_id, token_id in ((2, 101), (3, 102)):
        step = engine.submit(again(step_id, 1))
        assert step.done()
        assert tokens(step.result()) == [(1, token_id)]
    assert not engine.submit(again(4, 1)).done()


async def test_steps_that_bring_nothing_are_done_at_once(guest: ScriptedGuest, engine: GuestEngine) -> None:
    admit = [new_sequence(1, PROMPT, max_tokens=5)]
    part = StepPlan(step_id=1, admit=admit, chunks=[chunk(1, 0, PROMPT[:2], sample=False)])
    assert engine.submit(part).result().sampled == []
    assert list(guest.sequences) == [1]  # it has begun
    assert engine.submit(StepPlan(step_id=2, release=[1])).result().sampled == []
    assert guest.closed == [1]


async def test_a_step_is_ended_with_what_is_there(guest: ScriptedGuest, engine: GuestEngine) -> None:
    step = engine.submit(first(1, 1, 2))
    engine.hurry()
    assert step.result().sampled == []
    engine.hurry()  # no step runs
    step = engine.submit(again(2, 1, 2))
    guest.bring(2)
    engine.hurry()
    assert tokens(step.result()) == [(2, 100)]
    await asyncio.sleep(0)


async def test_what_comes_after_a_release_is_dropped(guest: ScriptedGuest, engine: GuestEngine) -> None:
    step = engine.submit(first(1, 1, 2))
    guest.bring(2, 3)
    await step
    follows = engine.submit(StepPlan(step_id=2, release=[2], chunks=[chunk(1, 3, [9])]))
    guest.send(GuestPart(seq_id=2, error="closed"))
    await asyncio.sleep(0)
    assert not follows.done()
    guest.bring(1)
    assert tokens(await follows) == [(1, 100)]


async def test_an_error_is_of_its_sequence_alone(guest: ScriptedGuest, engine: GuestEngine) -> None:
    step = engine.submit(first(1, 1, 2))
    guest.fail(1, "the connection was cut")
    guest.bring(2)
    failed, fine = (await step).sampled
    assert (failed.seq_id, failed.error, failed.cause) == (1, "the connection was cut", "guest")
    assert (fine.seq_id, fine.error) == (2, "")


async def test_a_guest_gets_what_is_left_of_answer_and_context(guest: ScriptedGuest) -> None:
    guest.facts = GuestFacts(name="g", fingerprint="f", context_length=8, vocab_size=257)
    engine = GuestEngine(guest, max_running=4, start_timeout_s=60.0)
    await engine.start()
    admit = [
        new_sequence(1, [1] * 5, max_tokens=2),
        new_sequence(2, [1] * 5, max_tokens=9),
        new_sequence(3, [1] * 5),
        new_sequence(4, [1] * 8, max_tokens=1),
    ]
    chunks = [chunk(one.seq_id, 0, one.token_ids) for one in admit]
    (full,) = (await engine.submit(StepPlan(step_id=1, admit=admit, chunks=chunks))).sampled
    assert [(one.new.seq_id, one.max_tokens) for one in guest.opened] == [(1, 2), (2, 3), (3, 3)]
    assert (full.seq_id, full.cause, "no room" in full.error) == (4, "guest", True)
    await engine.stop()


@pytest.mark.parametrize(
    "new",
    [
        new_sequence(1, PROMPT, embedding=EmbeddingOptions()),
        new_sequence(1, PROMPT, scored=0),
    ],
    ids=["embedding", "prompt log probabilities"],
)
async def test_what_the_port_does_not_carry_is_refused_by_name(
    guest: ScriptedGuest, engine: GuestEngine, new: NewSequence
) -> None:
    step = engine.submit(StepPlan(step_id=1, admit=[new], chunks=[chunk(1, 0, PROMPT)]))
    (one,) = step.result().sampled
    assert (one.error, one.cause) == ("it gives no embeddings and no log probabilities of prompts", "guest")
    assert guest.opened == []


async def test_masks_are_refused(guest: ScriptedGuest, engine: GuestEngine) -> None:
    masked = ScheduledChunk(seq_id=1, start=0, token_ids=PROMPT, sample=True, masked=True)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, PROMPT)], chunks=[masked])
    (one,) = engine.submit(plan).result().sampled
    assert ("masks" in one.error, one.cause) == (True, "guest")


async def test_there_is_one_step_at_a_time(engine: GuestEngine) -> None:
    engine.submit(first(1, 1))
    with pytest.raises(RuntimeError, match="step 2"):
        engine.submit(again(2, 1))


async def test_neither_blocks_nor_adapters_are_loaded(engine: GuestEngine) -> None:
    fetched = await engine.fetch_blocks(FetchBlocks(fetch_id=1, blocks=[1], names=b"", after_step=0))
    assert (fetched.count, fetched.missing) == (0, True)
    loaded = await engine.load_adapter(LoadAdapter(order_id=1, slot=0, source="x", fingerprint="y"))
    assert "loads no adapters" in loaded.error
    assert engine.step_times() is None


async def test_a_guest_that_dies_fails_the_step_and_those_that_follow(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    idle: list[int] = []
    engine.watch_failures(lambda: idle.append(1))
    step = engine.submit(first(1, 1))
    guest.die("its process ended with code 1")
    with pytest.raises(EngineFailed, match="its process ended with code 1") as caught:
        await step
    assert (caught.value.failure.kind, caught.value.failure.fault) == ("guest_lost", False)
    assert idle == []  # the step has said it
    with pytest.raises(EngineFailed, match="its process ended"):
        engine.submit(again(2, 1))
    assert engine.status()[0]["state"] == "failed"
    await engine.stop()
    with pytest.raises(EngineFailed, match="its process ended"):
        engine.submit(again(2, 1))
    await engine.start()
    assert engine.submit(first(1, 1)).done() is False


async def test_a_death_between_steps_is_told_to_the_watcher(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    idle: list[int] = []
    engine.watch_failures(lambda: idle.append(1))
    guest.die("unreachable")
    guest.die("unreachable")
    assert idle == [1]


async def test_facts_of_the_guest_become_those_of_the_engine(guest: ScriptedGuest) -> None:
    engine = GuestEngine(guest, max_running=4, start_timeout_s=60.0)
    info = await engine.start()
    assert (info.streams, info.run_ahead, info.kv_parts, info.ranks) == (True, 0, None, [])
    assert (info.num_blocks, info.max_running) == (4 * 128, 0)
    guest.facts = GuestFacts(
        name="g", fingerprint="f", context_length=100, vocab_size=9, max_running=2, kv_tokens=1000
    )
    info = await engine.start()
    assert (info.num_blocks, info.max_running, info.context_length, info.vocab_size) == (62, 2, 100, 9)


async def test_a_guest_that_is_not_ready_in_time_is_stopped(guest: ScriptedGuest) -> None:
    guest.start_s = 60.0
    engine = GuestEngine(guest, max_running=4, start_timeout_s=0.01)
    with pytest.raises(EngineFailed, match=r"not ready after 0\.01 s") as caught:
        await engine.start()
    assert (caught.value.failure.kind, guest.stops) == ("start_failed", 1)


@pytest.mark.parametrize("error", [EngineFailed("no answer", "start_failed"), EngineRefused("another model")])
async def test_what_a_start_says_is_passed_on(guest: ScriptedGuest, error: EngineFailed) -> None:
    guest.start_error = error
    engine = GuestEngine(guest, max_running=4, start_timeout_s=60.0)
    with pytest.raises(EngineFailed) as caught:
        await engine.start()
    assert (caught.value is error, guest.stops) == (True, 1)


async def test_a_stop_ends_the_step_and_may_come_twice(guest: ScriptedGuest, engine: GuestEngine) -> None:
    step = engine.submit(first(1, 1))
    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineFailed, match="stopped"):
        await step
    assert engine.status() == [
        {"rank": 0, "state": "stopped", "steps": 1, "engine": "guest", "streams": 0, "guest": "scripted"}
    ]


async def test_a_result_that_nobody_awaits_any_more_is_dropped(
    guest: ScriptedGuest, engine: GuestEngine
) -> None:
    engine.submit(first(1, 1)).cancel()
    guest.bring(1)
    await asyncio.sleep(0)
    assert tokens(engine.submit(again(2, 1)).result()) == [(1, 100)]
