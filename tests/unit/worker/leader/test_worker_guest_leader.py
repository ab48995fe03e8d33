"""A leader in front of a guest: what it promises its callers holds whatever arrives when."""

from collections.abc import AsyncIterator

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import GuestFacts, GuestPart
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from shared import codec, subjects
from shared.messages import Cancel, Done, Failed
from tests.kits.guests.scripted import LETTERS, ScriptedGuest
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of, tokens_of
from tests.kits.worker.options import scheduler_limits


def engine_of(guest: ScriptedGuest) -> GuestEngine:
    return GuestEngine(guest, max_running=8, start_timeout_s=60.0)


@pytest.fixture
def guest() -> ScriptedGuest:
    return ScriptedGuest()


@pytest.fixture
async def kit(memory_bus: MemoryBus, guest: ScriptedGuest) -> AsyncIterator[Kit]:
    """A leader in front of a guest that brings what the test says."""
    async with Kit(memory_bus, engine_of(guest), back_off=RestartPauses(first_s=0.01)) as kit:
        yield kit


def answer(prompt: str, length: int) -> str:
    return "".join(chr(LETTERS[(len(prompt) + i) % 26]) for i in range(length))


async def open_of(kit: Kit, guest: ScriptedGuest, count: int) -> list[int]:
    """Waits until the guest has so many sequences; returns their ids."""
    await kit.until(lambda: len(guest.sequences) == count)
    return sorted(guest.sequences)


@pytest.mark.parametrize("burst", [1, 7])
async def test_answers_are_those_of_an_engine_that_computes_steps(memory_bus: MemoryBus, burst: int) -> None:
    guest = ScriptedGuest(by_itself=True, burst=burst)
    async with Kit(memory_bus, engine_of(guest)) as kit:
        for number in range(5):
            await kit.ask(chat(f"r{number}", prompt="x" * (3 + number), sampling={"max_tokens": 20}))
        for number in range(5):
            frames = await kit.end_of(f"r{number}")
            assert (text_of(frames), finish_of(frames)) == (answer("x" * (3 + number), 20), "length")
        await kit.all_free()
        await kit.until(lambda: sorted(guest.closed) == [1, 2, 3, 4, 5])
        assert kit.leader.detail()["computed_tokens"] == sum(2 + number + 20 for number in range(5))


async def test_choices_are_sequences_of_their_own(memory_bus: MemoryBus) -> None:
    guest = ScriptedGuest(by_itself=True)
    async with Kit(memory_bus, engine_of(guest)) as kit:
        frames = await kit.run(chat("r", prompt="abc", sampling={"n": 3, "max_tokens": 4}))
        assert [text_of(frames, choice) for choice in range(3)] == [answer("abc", 4)] * 3
        assert sorted(one.new.choice for one in guest.opened) == [0, 1, 2]
        assert frames[-1].usage.cached_tokens == 0  # type: ignore[union-attr]


async def test_stop_strings_are_the_leaders(memory_bus: MemoryBus) -> None:
    guest = ScriptedGuest(by_itself=True)
    async with Kit(memory_bus, engine_of(guest)) as kit:
        frames = await kit.run(chat("r", prompt="abc", sampling={"max_tokens": 26, "stop": ["hi"]}))
        assert (text_of(frames), finish_of(frames)) == ("defg", "stop")
        await kit.until(lambda: guest.closed == [1])
        await kit.all_free()


async def test_a_cancel_reaches_a_guest_that_says_nothing(kit: Kit, guest: ScriptedGuest) -> None:
    await kit.ask(chat("r", prompt="abc"))
    await kit.ask(chat("other", prompt="abcd"))
    first, second = await open_of(kit, guest, 2)
    await kit.bus.publish(
        subjects.cancel("g0"), codec.encode(Cancel(request_id="r", reason="it left", attempt=0))
    )
    assert isinstance((await kit.end_of("r"))[-1], Failed)
    await kit.until(lambda: guest.closed == [first])
    guest.bring(second, 16)
    assert text_of(await kit.end_of("other")) == answer("abcd", 16)


async def test_a_request_is_admitted_while_a_step_waits(kit: Kit, guest: ScriptedGuest) -> None:
    await kit.ask(chat("slow", prompt="abc"))
    await open_of(kit, guest, 1)
    await kit.ask(chat("quick", prompt="abcd"))
    slow, quick = await open_of(kit, guest, 2)
    guest.bring(quick, 16)
    assert text_of(await kit.end_of("quick")) == answer("abcd", 16)
    guest.bring(slow, 16)
    assert text_of(await kit.end_of("slow")) == answer("abc", 16)


async def test_a_deadline_passes_while_a_guest_says_nothing(kit: Kit, guest: ScriptedGuest) -> None:
    await kit.ask(chat("r", prompt="abc"), {subjects.HEADER_TIMEOUT: "150"})
    failed = (await kit.end_of("r"))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "deadline_exceeded"
    await kit.until(lambda: guest.closed == [1])


async def test_what_a_guest_ends_with_an_error_goes_on_elsewhere(kit: Kit, guest: ScriptedGuest) -> None:
    await kit.ask(chat("r", prompt="abc", sampling={"max_tokens": 9}))
    await kit.ask(chat("other", prompt="abcd"))
    first, second = await open_of(kit, guest, 2)
    guest.bring(first, 4)
    guest.fail(first, "the connection was cut")
    frames = await kit.end_of("r")
    failed = frames[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.resumable, failed.data["reason"]) == ("group_lost", True, "guest")
    assert "the connection was cut" in failed.message
    assert "suspect" not in failed.data
    assert text_of(frames) == answer("abc", 4)
    assert tokens_of(frames) == [ord(letter) for letter in answer("abc", 4)]
    guest.bring(second, 16)
    assert isinstance((await kit.end_of("other"))[-1], Done)
    counts = kit.leader.parts.table.counts
    assert (counts.broken, counts.ended) == (1, 1)
    assert kit.metric("failed_sequences_total") == 1
    assert kit.metric("engine_failures_total") == 0


async def test_an_answer_ends_early_by_the_guests_rules_and_goes_on_elsewhere(
    kit: Kit, guest: ScriptedGuest
) -> None:
    await kit.ask(chat("r", prompt="abc"))
    (seq_id,) = await open_of(kit, guest, 1)
    guest.bring(seq_id, 2)
    guest.send(GuestPart(seq_id=seq_id, finished="length"))
    frames = await kit.end_of("r")
    failed = frames[-1]
    assert isinstance(failed, Failed)
    assert (text_of(frames), failed.code) == (answer("abc", 2), "group_lost")
    assert "ended the sequence after 2 of 16 tokens" in failed.message


async def test_a_guest_that_is_gone_loses_its_requests_and_is_started_again(
    kit: Kit, guest: ScriptedGuest
) -> None:
    kit.expected_errors = {"the engine failed"}
    await kit.ask(chat("r", prompt="abc"))
    (seq_id,) = await open_of(kit, guest, 1)
    guest.bring(seq_id, 3)
    await kit.until(lambda: text_of(kit.frames["r"]) == answer("abc", 3))
    guest.die("its process ended")
    failed = (await kit.end_of("r"))[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.resumable, failed.data["reason"]) == ("group_lost", True, "engine_failed")
    assert "suspect" not in failed.data
    assert kit.metric("engine_failures_total", kind="guest_lost") == 1
    await kit.until(lambda: guest.starts == 2 and kit.leader.state == "ready")
    await kit.ask(chat("again", prompt="abc"))
    guest.bring((await open_of(kit, guest, 1))[0], 16)
    assert text_of(await kit.end_of("again")) == answer("abc", 16)


async def test_a_death_between_requests_is_seen(kit: Kit, guest: ScriptedGuest) -> None:
    kit.expected_errors = {"the engine failed"}
    guest.die("unreachable")
    await kit.until(lambda: kit.metric("engine_failures_total", kind="guest_lost") == 1)
    await kit.until(lambda: guest.starts == 2 and kit.leader.state == "ready")


async def test_no_more_run_than_a_guest_computes_at_once(memory_bus: MemoryBus) -> None:
    guest = ScriptedGuest(
        facts=GuestFacts(name="two", fingerprint="f", context_length=2048, vocab_size=257, max_running=2)
    )
    async with Kit(memory_bus, engine_of(guest), steps=scheduler_limits(64, 16, 16)) as kit:
        for number in range(3):
            await kit.ask(chat(f"r{number}", prompt="abc"))
        first, _ = await open_of(kit, guest, 2)
        await kit.until(lambda: kit.leader.load().waiting == 1)
        assert kit.leader.load().max_running == 2
        guest.bring(first, 16)
        assert isinstance((await kit.end_of("r0"))[-1], Done)
        for seq_id in await open_of(kit, guest, 2):
            guest.bring(seq_id, 16)
        for number in (1, 2):
            assert isinstance((await kit.end_of(f"r{number}"))[-1], Done)
