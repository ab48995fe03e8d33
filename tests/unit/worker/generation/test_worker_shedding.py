"""Which waiting requests a newcomer displaces: the rule, and a leader whose queue is full."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.generation.shedding import WaitingRequest, displaced_by
from services.worker.domain.scheduling.sequence import SequencePhase
from shared.codec import pack_tokens
from shared.messages import Accepted, Done, Failed, GenerateRequest, ResumePoint
from shared.messages.base import BACKGROUND_PRIORITY
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine, text_of, tokens_of
from tests.kits.worker.options import scheduler_limits

TENANTS = st.sampled_from(["a", "b", "c", "d"])
WAITERS = st.builds(
    WaitingRequest,
    request_id=st.uuids().map(str),
    tenant=TENANTS,
    priority=st.sampled_from([BACKGROUND_PRIORITY, -1, 0, 1]),
    slots=st.integers(1, 4),
    arrived=st.floats(0, 100),
    firm=st.booleans(),
)
QUEUES = st.lists(WAITERS, max_size=30)


def held(waiting: list[WaitingRequest], gone: set[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for waiter in waiting:
        if waiter.request_id not in gone:
            counts[waiter.tenant] += waiter.slots
    return counts


def goes_before(newcomer: WaitingRequest, waiter: WaitingRequest) -> bool:
    if waiter.is_background != newcomer.is_background:
        return waiter.is_background
    return not newcomer.is_background and (
        waiter.tenant == newcomer.tenant and waiter.priority < newcomer.priority
    )


@given(newcomer=WAITERS, waiting=QUEUES, missing=st.integers(1, 4))
def test_what_always_holds(newcomer: WaitingRequest, waiting: list[WaitingRequest], missing: int) -> None:
    gone = displaced_by(newcomer, waiting, missing)
    by_key = {waiter.request_id: waiter for waiter in waiting}
    victims = [by_key[request_id] for request_id in gone]  # in the order of their displacement
    assert len(set(gone)) == len(gone) == len(victims)
    assert not any(victim.firm for victim in victims)
    assert not any(
        victim.priority > newcomer.priority and victim.tenant == newcomer.tenant for victim in victims
    )
    assert not any(newcomer.is_background and not victim.is_background for victim in victims)
    if gone:
        by_id = {waiter.request_id: waiter.slots for waiter in waiting}
        freed = [by_id[request_id] for request_id in gone]
        assert sum(freed) >= missing > sum(freed[:-1])  # enough places, and no victim too many
    lower = {w.request_id for w in waiting if not w.firm and goes_before(newcomer, w)}
    equals = [victim for victim in victims if not goes_before(newcomer, victim)]
    if equals:
        assert lower <= set(gone)  # these are displaced first
        before = held(waiting, lower)
        tenants = {tenant for tenant, slots in before.items() if slots} | {newcomer.tenant}
        share = (before.total() + newcomer.slots) / len(tenants)
        assert before[newcomer.tenant] + newcomer.slots <= share
        assert before[equals[0].tenant] > share
        assert newcomer.tenant not in {victim.tenant for victim in equals}


@given(newcomer=WAITERS, waiting=QUEUES)
def test_no_tenant_is_displaced_by_the_one_it_displaced(
    newcomer: WaitingRequest, waiting: list[WaitingRequest]
) -> None:
    gone = displaced_by(newcomer, waiting, newcomer.slots)
    left = [waiter for waiter in waiting if waiter.request_id not in gone] + [newcomer]
    for request_id in gone:
        again = next(waiter for waiter in waiting if waiter.request_id == request_id)
        assert newcomer.request_id not in displaced_by(again, left, again.slots)


def test_a_request_of_several_slots_displaces_none_that_could_come_back_for_its_own() -> None:
    large, small = WaitingRequest("large", "b", 0, 4, 0.0), WaitingRequest("small", "b", 0, 1, 1.0)
    newcomer = WaitingRequest("n", "c", 0, 3, 9.0)
    assert displaced_by(small, [newcomer], 1) == ["n"]
    assert displaced_by(newcomer, [large, small], 3) == []
    assert displaced_by(newcomer, [large], 3) == ["large"]


def test_background_work_then_the_own_lowest_then_the_newest_goes() -> None:
    waiting = [
        WaitingRequest("high", "a", 2, 1, 1.0),
        WaitingRequest("low, old", "a", -1, 1, 2.0),
        WaitingRequest("low, new", "a", -1, 1, 3.0),
        WaitingRequest("low, runs", "a", -2, 1, 4.0, firm=True),
        WaitingRequest("batch", "b", BACKGROUND_PRIORITY, 1, 0.0),
        WaitingRequest("low, of another", "b", -1, 1, 9.0),
    ]
    newcomer = WaitingRequest("n", "a", 0, 1)
    assert displaced_by(newcomer, waiting, 1) == ["batch"]
    assert displaced_by(newcomer, waiting, 3) == ["batch", "low, new", "low, old"]
    assert displaced_by(newcomer, waiting, 4) == []
    assert displaced_by(WaitingRequest("n", "c", BACKGROUND_PRIORITY, 1), waiting[:4], 1) == []


def test_a_priority_displaces_nothing_of_another_tenant() -> None:
    waiting = [WaitingRequest(f"{tenant}0", tenant, 0, 1) for tenant in "ab"]
    assert displaced_by(WaitingRequest("a1", "a", 9, 1), waiting, 1) == ["a0"]
    assert displaced_by(WaitingRequest("a1", "a", 9, 1), waiting[1:], 1) == []
    several = [WaitingRequest(f"b{number}", "b", 9, 1, number) for number in range(4)]
    assert displaced_by(WaitingRequest("a1", "a", -9, 1), several, 1) == ["b3"]


def test_shares_are_by_weight() -> None:
    waiting = [WaitingRequest(f"a{number}", "a", 0, 1, number, weight=3.0) for number in range(8)]
    for number in range(4):
        newcomer = WaitingRequest(f"b{number}", "b", 0, 1, 10.0)
        gone = displaced_by(newcomer, waiting, 1)
        assert gone == ([f"a{7 - number}"] if number < 2 else [])
        waiting = [waiter for waiter in waiting if waiter.request_id not in gone] + [newcomer] * bool(gone)


def test_a_tenant_gets_its_share_and_no_more() -> None:
    waiting = [WaitingRequest(f"a{number}", "a", 0, 1, number) for number in range(8)]
    for number in range(4):
        newcomer = WaitingRequest(f"b{number}", "b", 0, 1, 10.0)
        assert displaced_by(newcomer, waiting, 1) == [f"a{7 - number}"]
        waiting = [waiter for waiter in waiting if waiter.request_id != f"a{7 - number}"] + [newcomer]
    assert displaced_by(WaitingRequest("b4", "b", 0, 1, 10.0), waiting, 1) == []
    assert displaced_by(WaitingRequest("a8", "a", 0, 1, 10.0), waiting, 1) == []


@pytest.fixture
async def full(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    """One request runs, four wait, and the queue is full."""
    async with Kit(memory_bus, null_engine(delay_s=0.005), steps=scheduler_limits(64, 1, 4)) as kit:
        await kit.ask(chat("runs", sampling={"max_tokens": 1500, "ignore_eos": True}))
        await kit.until(lambda: bool(text_of(kit.frames["runs"])))
        for number in range(4):
            await kit.ask(chat(f"w{number}", tenant="a", sampling={"max_tokens": 4}))
        await kit.until(lambda: all(kit.frames[f"w{number}"] for number in range(4)))
        yield kit
        kit.leader.parts.table.cancel_request("runs", "the test is over")
        await kit.all_free(5.0)


def refused(kit: Kit, request_id: str) -> Failed | None:
    last = kit.frames[request_id][-1:]
    return last[0] if last and isinstance(last[0], Failed) else None


async def test_an_equal_of_the_same_tenant_is_refused(full: Kit) -> None:
    failed = await full.failure(chat("new", tenant="a"))
    assert (failed.code, failed.data.get("reason")) == ("overloaded", None)
    assert not any(refused(full, f"w{number}") for number in range(4))


async def test_a_higher_priority_displaces_the_newest(full: Kit) -> None:
    await full.ask(chat("new", tenant="a", priority=5))
    shed = (await full.end_of("w3"))[-1]
    assert isinstance(shed, Failed)
    assert (shed.code, shed.data["reason"], shed.data["retry_after_s"]) == ("overloaded", "shed", 1.0)
    assert full.metric("shed_requests_total") == 1
    await full.until(lambda: bool(full.frames["new"]))
    assert isinstance(full.frames["new"][0], Accepted)
    assert full.leader.load().waiting <= 4
    assert full.leader.parts.table.counts.broken == 0


async def test_another_tenant_gets_its_share(full: Kit) -> None:
    for name in ("b0", "b1"):
        await full.ask(chat(name, tenant="b"))
    assert isinstance((await full.end_of("w3"))[-1], Failed)
    assert isinstance((await full.end_of("w2"))[-1], Failed)
    failed = await full.failure(chat("b2", tenant="b"))
    assert failed.data.get("reason") is None
    assert not refused(full, "w0")
    assert not refused(full, "b0")


def resumed(name: str, number: int = 3) -> GenerateRequest:
    tokens = pack_tokens(b"The"[:number])
    return chat(
        name,
        tenant="a",
        attempt=1,
        resume=ResumePoint(token_ids=[tokens], next_seq=2),
        sampling={"max_tokens": 9},
    )


async def test_resumed_requests_come_in_beyond_the_limit_and_first(full: Kit) -> None:
    await full.ask(resumed("again"))
    await full.until(lambda: bool(full.frames["again"]))
    assert not any(refused(full, f"w{number}") for number in range(4))
    waiting = [s for s in full.leader.parts.engine.scheduler.waiting if s.phase is SequencePhase.WAITING]  # type: ignore[union-attr]
    assert waiting[0].request_id == "a/again"
    failed = await full.failure(resumed("too-many"))  # `again` has the only extra place
    assert failed.code == "overloaded"
    await full.ask(chat("new", tenant="a", priority=5))
    shed = (await full.end_of("w3"))[-1]  # one victim for one newcomer; the resumed request stays
    assert isinstance(shed, Failed)
    assert not refused(full, "again")
    assert not refused(full, "w2")
    full.leader.parts.table.cancel_request("runs", "make room")
    frames = await full.end_of("again")
    assert isinstance(frames[-1], Done)
    assert (frames[0].seq, len(tokens_of(frames))) == (2, 6)


async def test_the_deadline_passes_while_a_request_is_prepared(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        kit.store.delay_s = 60.0
        request = chat("r", session={"session_id": "s"})
        await kit.ask(request, {"Ryz-Timeout-Ms": "50"})
        last = (await kit.end_of("r"))[-1]
        assert isinstance(last, Failed)
        assert last.code == "deadline_exceeded"
        await asyncio.sleep(0)
        await kit.all_free()
