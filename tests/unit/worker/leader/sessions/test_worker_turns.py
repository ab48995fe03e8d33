"""Turns of a session in the leader: their order, their reported outcome, and the merging of records."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.domain.generation.session_merge import follows, rebase, rewind
from services.worker.domain.generation.turn_context import (
    TurnAnswer,
    TurnContext,
    added_by,
    next_record,
    turn_of,
)
from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_lines import TurnLimits
from services.worker.metrics import WorkerMetrics
from shared.codec import pack_tokens
from shared.errors import Conflict, Unavailable
from shared.messages import (
    Accepted,
    ChatMessage,
    Done,
    Failed,
    GenerateRequest,
    SessionCommitted,
    SessionOutcome,
    SessionRecord,
    SessionRef,
    Usage,
)
from shared.messages.sessions import MAX_SESSION_MESSAGES
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import DictStore, Kit, chat, null_engine, text_of, tokens_of
from tests.kits.worker.options import record_limits


def given(**fields: Any) -> dict[str, Any]:
    return {"session": {"session_id": "s", **fields}}


def said(record: SessionRecord) -> list[str]:
    return [message.content for message in record.messages]


def asked(
    request_id: str, messages: list[ChatMessage], ref: SessionRef | None = None, **fields: str
) -> GenerateRequest:
    session = ref or SessionRef(session_id="s")
    return chat(request_id, messages=messages, session=session, tenant="t", **fields)


def turn(
    text: str, base: SessionRecord | None, *, system: str = "", whole: bool = False, now_ms: int = 5
) -> SessionRecord:
    """The record after one more turn; the text is also the request's id."""
    messages = [ChatMessage(role="user", content=text)]
    if system:
        messages.insert(0, ChatMessage(role="system", content=system))
    request = asked(text, messages, SessionRef(session_id="s", mode="replace" if whole else "append"))
    answer = TurnAnswer(ChatMessage(role="assistant", content=text.upper()), b"")
    return next_record(turn_of(request, base), request, answer, model="m", group="g", now_ms=now_ms)


def test_turns_that_went_on_from_the_same_record_are_put_one_after_the_other() -> None:
    base = turn("a", None)
    mine, theirs = turn("b", base), turn("c", base)
    assert not follows(turn("d", mine), theirs)  # a later version, but without `c`
    joined = rebase(turn("d", mine), theirs)
    assert joined is not None
    assert said(joined) == ["a", "A", "c", "C", "b", "B", "d", "D"]
    assert (joined.version, joined.turns) == (4, 4)
    assert [(mark.request_id, mark.version) for mark in joined.recent] == [
        ("a", 1), ("c", 2), ("b", 3), ("d", 4),
    ]  # fmt: skip
    assert follows(joined, theirs)
    assert rebase(mine, joined) is joined  # `b` is not added twice


def test_two_first_turns_are_joined_and_system_prompts_stay_at_the_head() -> None:
    mine = turn("a", None, system="mine", now_ms=1)
    joined = rebase(mine, turn("b", None, now_ms=2))
    assert joined is not None
    assert said(joined) == ["mine", "b", "B", "a", "A"]
    assert joined.created_ms == 2
    joined = rebase(turn("a", None), turn("b", None, system="theirs"))
    assert joined is not None
    assert said(joined) == ["theirs", "b", "B", "a", "A"]


def test_a_whole_conversation_takes_the_place_of_what_is_there() -> None:
    base = turn("a", None)
    joined = rebase(turn("b", base, whole=True), turn("c", base))
    assert joined is not None
    assert (said(joined), joined.version) == (["b", "B"], 3)


def test_what_cannot_be_joined_is_a_conflict() -> None:
    base = turn("a", None, now_ms=1)
    anew = turn("x", None, now_ms=9)
    assert rebase(turn("b", base), anew) is not None  # `a` is in `recent`, so it is moved too
    imported = replace(base, recent=[], last_request="", created_ms=1)
    assert rebase(turn("b", imported), anew) is None
    mine = base
    for number in range(20):
        mine = turn(f"t{number}", mine)
    assert rebase(mine, turn("c", base)) is None
    empty = ChatMessage(role="user", content="")
    full = replace(turn("c", base), messages=[empty] * (MAX_SESSION_MESSAGES - 2))
    assert rebase(turn("b", base), full) is not None
    assert rebase(turn("b", base), replace(full, messages=[*full.messages, empty])) is None


def test_a_record_is_taken_back_to_an_earlier_version() -> None:
    first = turn("a", None)
    third = turn("c", turn("b", first))
    back = rewind(third, 1)
    assert back is not None
    assert (said(back), back.version, back.turns, back.last_request) == (["a", "A"], 1, 1, "a")
    assert follows(turn("d", back), first)
    assert rewind(turn("b", first, whole=True), 1) is None
    assert rewind(replace(third, recent=third.recent[2:]), 1) is None


def test_an_answer_that_was_begun_goes_on_from_what_it_was_begun_with() -> None:
    first = turn("a", None)
    second = turn("b", first)
    messages = [ChatMessage(role="user", content="c")]
    ref = SessionRef(session_id="s")
    request = asked("c", messages)
    resumed = turn_of(request, second, 1)
    assert [message.content for message in resumed.messages] == ["a", "A", "c"]
    assert turn_of(request, second, 0).record is None
    assert turn_of(request, second).version == 2
    assert added_by([ChatMessage(role="system", content="x"), *messages], ref) == 1
    again = turn_of(request, turn("d", turn("c", first)), 1)  # turn `c` was stored, then `d`
    assert ([message.content for message in again.messages], again.stored, again.number) == (
        ["a", "A", "c"], 2, 1,
    )  # fmt: skip
    assert not again.commits


class Lagging(DictStore):
    """A store that accepts records by the real `follows` rule.

    Attributes:
        limit: The most messages in a record.
        trouble: The reason of `Unavailable` while the store is away.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = 10**9
        self.trouble = "session_store"

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the store is away", reason=self.trouble)
        stale, too_large = [], []
        for index, record in enumerate(records):
            stored = self.records.get((record.tenant, record.session_id))
            if len(record.messages) > self.limit:
                too_large.append(index)
            elif stored is not None and not follows(record, stored):
                stale.append(index)
            else:
                self.records[record.tenant, record.session_id] = record
        return SessionCommitted(stale=stale, too_large=too_large)


@pytest.mark.parametrize("newer_waits", [False, True])
async def test_a_stale_record_goes_after_the_other_turn(newer_waits: bool) -> None:
    store = Lagging()
    sessions = SessionRecords(store, record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    base = turn("a", None)
    store.records["t", "s"] = turn("c", base)
    mine = turn("b", base)
    futures = [sessions.commit(mine)]
    if newer_waits:
        futures.append(sessions.commit(turn("d", mine)))
    assert await sessions.writer.flush_records(1.0)
    assert [future.result() for future in futures] == [("stored", 1, 1)] * len(futures)
    assert said(store.records["t", "s"])[:6] == ["a", "A", "c", "C", "b", "B"]
    assert sessions.newest("t", "s") == store.records["t", "s"]


async def test_who_wants_the_session_as_it_is_gets_a_conflict() -> None:
    store = Lagging()
    sessions = SessionRecords(store, record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    base = turn("a", None)
    store.records["t", "s"] = turn("c", base)
    future = sessions.commit(turn("b", base), joins=False)
    assert await sessions.writer.flush_records(1.0)
    assert future.result().outcome == "stale"
    assert said(store.records["t", "s"]) == ["a", "A", "c", "C"]


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    async with turns_kit(memory_bus, wait_s=PATIENCE_S) as kit:
        yield kit


@asynccontextmanager
async def turns_kit(bus: MemoryBus, wait_s: float) -> AsyncIterator[Kit]:
    """A kit whose turns wait that long for another; three of them may."""
    limits = TurnLimits(max_waiting=3, wait_s=wait_s, yield_s=0.05)
    async with Kit(bus, null_engine(delay_s=0.001), store=Lagging(), turns=limits) as kit:
        yield kit
        await kit.all_free()
        assert not kit.leader.parts.turns.num_lines


def outcome(frames: list[Any]) -> SessionOutcome:
    assert isinstance(frames[-1], Done), frames[-1]
    assert frames[-1].session is not None
    return frames[-1].session


async def test_turns_wait_for_each_other_in_the_order_in_which_they_came(kit: Kit) -> None:
    for name in ("a", "b", "c"):
        await kit.ask(chat(name, name, **given()))
    ends = [outcome(await kit.end_of(name)) for name in ("a", "b", "c")]
    assert ends == [
        SessionOutcome(state="new" if turns == 1 else "continued", turns=turns, version=turns)
        for turns in (1, 2, 3)
    ]
    record = kit.store.records["default", "s"]
    assert said(record)[::2] == ["a", "b", "c"]


def cancel_all(kit: Kit) -> None:
    for generation in list(kit.leader.parts.table.by_key.values()):
        kit.leader.parts.table.cancel_request(generation.request.request_id, "the test is over")


async def test_a_line_is_bounded_in_number(kit: Kit) -> None:
    await kit.ask(chat("slow", "x", sampling={"max_tokens": 900}, **given()))
    for number in range(4):
        await kit.ask(chat(f"r{number}", **given()))
    last = (await kit.end_of("r3"))[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.data["reason"]) == ("overloaded", "session_turns")
    assert "3 turns of session s wait already" in last.message
    assert isinstance((await kit.run(chat("other", session={"session_id": "o"})))[-1], Done)
    cancel_all(kit)


async def test_a_line_is_bounded_in_time(memory_bus: MemoryBus) -> None:
    async with turns_kit(memory_bus, wait_s=0.2) as kit:
        await kit.ask(chat("slow", "x", sampling={"max_tokens": 900}, **given()))
        await kit.ask(chat("late", **given()))
        late = (await kit.end_of("late"))[-1]
        assert isinstance(late, Failed)
        assert (late.code, late.data["reason"]) == ("overloaded", "session_turns")
        assert "waited 0.2 s" in late.message
        cancel_all(kit)


async def test_a_turn_that_leaves_the_line_does_not_hold_it_up(kit: Kit) -> None:
    await kit.ask(chat("a", sampling={"max_tokens": 100}, **given()))
    for name in ("b", "c", "d"):
        await kit.ask(chat(name, name, **given()))
    kit.leader.parts.table.cancel_request("b", "left")
    kit.leader.parts.table.cancel_request("a", "left")
    assert outcome(await kit.end_of("c")).turns == 1
    assert outcome(await kit.end_of("d")).turns == 2


async def test_a_turn_with_the_beginning_of_its_answer_goes_before_one_without(kit: Kit) -> None:
    whole = await kit.run(chat("probe", "1", session={"session_id": "probe"}))
    resume = {"token_ids": [b""], "next_seq": 1}
    await kit.ask(chat("second", "2", attempt=1, resume=resume, **given()))
    first = chat("first", "1", **given())
    begun = {"token_ids": [pack_tokens(tokens_of(whole)[:3])], "next_seq": 4, "session_version": 0}
    await kit.ask(replace(first, attempt=1, resume=chat("x", resume=begun).resume))
    assert outcome(await kit.end_of("first")).turns == 1
    assert outcome(await kit.end_of("second")).turns == 2


@pytest.mark.parametrize(
    ("trouble", "stored", "reason"),
    [
        ("too_large", "not_stored", "too_large"),
        ("session_store", "pending", "store_away"),
        ("disk_full", "pending", "disk_full"),
        ("slow", "pending", ""),
    ],
)
async def test_what_is_not_stored_is_reported(kit: Kit, trouble: str, stored: str, reason: str) -> None:
    await kit.run(chat("first", **given()))
    store, release = kit.store, asyncio.Event()
    assert isinstance(store, Lagging)
    if trouble == "too_large":
        store.limit = 2
    elif trouble != "slow":
        store.away, store.trouble = True, trouble
        await kit.run(chat("other", session={"session_id": "o", "mode": "replace"}))
    else:
        commit = store.commit

        async def slow(records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
            await release.wait()
            return await commit(records, timeout_s=timeout_s)

        store.commit = slow  # type: ignore[method-assign]
    ended = outcome(await kit.run(chat("b", **given())))
    assert (ended.state, ended.stored, ended.reason) == ("continued", stored, reason)
    store.away = False
    release.set()


async def test_a_turn_over_a_record_that_is_not_known_says_that_it_is_not_stored(kit: Kit) -> None:
    kit.store.away = True
    ended = outcome(await kit.run(chat("a", session={"session_id": "s", "mode": "replace"})))
    assert (ended.stored, ended.reason) == ("not_stored", "store_away")
    kit.store.away = False


async def test_a_made_session_is_new_and_its_record_on_the_way(kit: Kit) -> None:
    frames = await kit.run(chat("a", **given(given=False)))
    assert isinstance(frames[0], Accepted)
    assert frames[0].session_version == 0
    assert outcome(frames).stored == "pending"
    assert text_of(frames)
    assert (await kit.run(chat("b", prompt="x")))[-1].session is None  # type: ignore[union-attr]
    assert TurnContext(SessionRef(session_id="s"), []).version == 0


def keyed(text: str, base: SessionRecord | None, request_id: str, digest: str = "d") -> SessionRecord:
    messages = [ChatMessage(role="user", content=text)]
    request = asked(request_id, messages, call_key="k", call_digest=digest)
    answer = TurnAnswer(ChatMessage(role="assistant", content=text.upper()), b"")
    return next_record(turn_of(request, base), request, answer, model="m", group="g", now_ms=5)


def test_a_call_that_is_made_twice_at_once_is_joined_to_one_turn() -> None:
    base = turn("a", None)
    first, second = keyed("b", base, "r-1"), keyed("b", base, "r-2")
    assert rebase(second, first) is first
    messages = [ChatMessage(role="user", content="b")]
    again = turn_of(asked("r-3", messages, call_key="k", call_digest="d"), turn("c", first))
    assert (again.stored, again.number, again.commits) == (2, 1, False)
    assert [message.content for message in again.messages] == ["a", "A", "b"]
    with pytest.raises(Conflict, match="Idempotency-Key"):
        turn_of(asked("r-3", messages, call_key="k", call_digest="other"), first)


def test_the_outbox_finds_a_call_by_its_key_unless_it_failed() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=10_000)

    def begin(name: str) -> None:
        request = chat(name, note=b"n", tenant="t", call_key="k", call_digest="d")
        outbox.open_attempt(f"t/{name}", 0, 0, request)

    begin("one")
    assert outbox.key_of_call("t", "k") == "t/one"
    assert outbox.key_of_call("other", "k") is None
    outbox.add_frame("t/one", Failed(request_id="one", code="group_lost", message="x"), 0.0)
    assert outbox.key_of_call("t", "k") is None
    begin("two")
    outbox.forget_expired(20.0)  # forgetting `one` keeps the key of `two`
    assert outbox.key_of_call("t", "k") == "t/two"
    outbox.add_frame("t/two", Done(request_id="two", usage=Usage()), 21.0)
    assert outbox.key_of_call("t", "k") == "t/two"
    outbox.forget_expired(40.0)
    assert outbox.key_of_call("t", "k") is None
