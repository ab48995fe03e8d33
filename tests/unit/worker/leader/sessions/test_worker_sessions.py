"""Sessions in the leader: history, versions, outages of the store, and waiting for records."""

import asyncio
import re
import time
from typing import Any

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from services.worker.domain.generation.session_cache import record_bytes
from services.worker.leader.fleet import group_status
from services.worker.leader.intake import preparation
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.sessions.records import SessionRecords
from services.worker.metrics import WorkerMetrics
from shared import codec, subjects
from shared.errors import Internal, InvalidRequest, RequestTooLarge, Unavailable
from shared.messages import (
    Accepted,
    Cancel,
    ChatMessage,
    Done,
    Failed,
    SessionCommit,
    SessionCommitted,
    SessionRecord,
)
from shared.messages.sessions import MAX_MARKS, TurnMark
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import DictStore, Kit, chat, text_of, tokens_of
from tests.kits.worker.options import record_limits


@pytest.fixture
def first_frame_knows_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Accepted` waits for the session's record; else it leaves without when a busy machine reads slowly."""
    monkeypatch.setattr(preparation, "ACCEPT_S", PATIENCE_S)


def given(session_id: str = "s", **fields: Any) -> dict[str, Any]:
    return {"session": {"session_id": session_id, **fields}}


@pytest.mark.usefixtures("first_frame_knows_the_session")
async def test_the_second_turn_has_the_first_one_s_context(kit: Kit) -> None:
    first = await kit.run(chat("a", "one", **given()))
    assert isinstance(first[0], Accepted)
    assert (first[0].session_id, first[0].session_turns) == ("s", 0)
    second = await kit.run(chat("b", "two", **given()))
    assert isinstance(second[0], Accepted)
    assert isinstance(second[-1], Done)
    assert second[0].session_turns == 1
    prompt = f"user: one\nassistant: {text_of(first)}\nuser: two\nassistant: "
    assert second[-1].usage.prompt_tokens == len(prompt)
    record = kit.store.records["default", "s"]
    assert [m.content for m in record.messages] == ["one", text_of(first), "two", text_of(second)]
    assert (record.version, record.turns, record.last_group, record.model) == (2, 2, "g0", "demo")
    assert codec.unpack_tokens(record.token_ids) == list((prompt + text_of(second)).encode())


async def test_a_session_that_outgrows_the_context_names_its_history(kit: Kit) -> None:
    await kit.run(chat("a", "x" * 1000, **given()))
    failed = await kit.failure(chat("b", "y" * 1000, sampling={"max_tokens": 0}, **given()))
    assert (failed.code, failed.data["param"]) == ("context_length_exceeded", "messages")
    assert re.fullmatch(
        r"the maximum context length is 2048 tokens for model demo, "
        r"the session's history and this message have 20\d\d: "
        r"start a new session, or send a shorter conversation with X-Session-Mode: replace",
        failed.message,
    )
    alone = await kit.failure(chat("c", "y" * 3000, **given(mode="replace")))
    assert "the prompt has 30" in alone.message


async def test_a_whole_conversation_replaces_the_stored_one(kit: Kit) -> None:
    await kit.run(chat("a", "one", **given()))
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "z"},
    ]
    await kit.run(chat("b", messages=said, **given()))
    assert [m.content for m in kit.store.records["default", "s"].messages[:3]] == ["x", "y", "z"]


async def test_done_waits_for_the_record_of_a_given_session_only(kit: Kit) -> None:
    frames = await kit.run(chat("a", **given()))
    assert isinstance(frames[-1], Done)
    assert ("default", "s") in kit.store.records
    kit.store.away = True
    await kit.run(chat("made", **given("m", given=False)))
    assert ("default", "m") not in kit.store.records
    started = time.monotonic()
    said = [{"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    assert isinstance((await kit.run(chat("c", messages=said, **given())))[-1], Done)
    assert time.monotonic() - started > 0.09
    kit.store.away = False
    await kit.until(lambda: ("default", "m") in kit.store.records)
    assert kit.store.records["default", "s"].version == 2


@pytest.mark.usefixtures("first_frame_knows_the_session")
async def test_what_is_not_stored_yet_is_known_here(kit: Kit) -> None:
    kit.store.away = True
    first = await kit.run(chat("a", "one", **given("m", given=False)))
    second = await kit.run(chat("b", "two", **given("m")))
    assert isinstance(second[0], Accepted)
    assert second[0].session_turns == 1
    kit.store.away = False
    await kit.until(lambda: ("default", "m") in kit.store.records)
    await kit.until(lambda: kit.store.records["default", "m"].version == 2)
    assert kit.store.records["default", "m"].messages[1].content == text_of(first)


async def test_records_that_wait_for_long_are_reported(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    await kit.run(chat("a", **given("late")))
    kit.store.away = True
    await kit.run(chat("b", **given("late")))
    assert kit.leader.detail()["degraded"] == []  # not late yet
    monkeypatch.setattr(group_status, "RECORDS_LATE_S", 0.05)
    await kit.until(lambda: kit.leader.detail()["degraded"] == ["session_store"])
    kit.store.away = False
    await kit.until(lambda: kit.leader.detail()["degraded"] == [])


async def test_without_the_store_only_what_depends_on_it_fails(kit: Kit) -> None:
    kit.store.away = True
    last = (await kit.run(chat("a", **given("unknown"))))[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.data["reason"]) == ("unavailable", "session_store")
    said = [{"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    assert isinstance((await kit.run(chat("b", messages=said, **given("unknown"))))[-1], Done)
    assert isinstance((await kit.run(chat("c")))[-1], Done)
    assert kit.metric("session_lookups_total", outcome="unavailable") == 2
    kit.store.away = False
    assert kit.leader.detail()["sessions_pending"] == 0


async def test_a_turn_waits_for_a_store_that_comes_back(memory_bus: MemoryBus) -> None:
    limits = record_limits(history_wait_s=PATIENCE_S)
    async with Kit(memory_bus, sessions=limits) as kit:
        kit.store.away = True
        await kit.ask(chat("a", **given("known")))
        await kit.until(lambda: kit.metric("session_lookups_total", outcome="unavailable") >= 2)
        await kit.until(lambda: bool(kit.frames["a"]))
        assert isinstance(kit.frames["a"][0], Accepted)
        kit.store.records["default", "known"] = SessionRecord(
            session_id="known", tenant="default", model="demo", version=1, turns=1
        )
        kit.store.away = False
        done = (await kit.end_of("a"))[-1]
        assert isinstance(done, Done)
        assert done.session is not None
        assert done.session.turns == 2


async def test_a_turn_waits_no_longer_than_it_may(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, sessions=record_limits(history_wait_s=0.3)) as kit:
        kit.store.away = True
        began = time.monotonic()
        last = (await kit.run(chat("a", **given("unknown"))))[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.data["reason"]) == ("unavailable", "session_store")
        assert time.monotonic() - began >= 0.05
        kit.store.away = False


async def test_a_slow_store_does_not_hold_up_accepted_or_a_cancel(kit: Kit) -> None:
    kit.store.delay_s = 1.0
    began = time.monotonic()
    await kit.ask(chat("a", **given()))
    await kit.ask(chat("b", **given("other")))
    await kit.until(lambda: len(kit.frames["a"]) == 1)
    assert isinstance(kit.frames["a"][0], Accepted)
    assert kit.leader.load().waiting == 2
    await kit.bus.publish(subjects.CANCEL_ALL, codec.encode(Cancel(request_id="b")))
    last = (await kit.end_of("b"))[-1]
    assert isinstance(last, Failed)
    assert last.code == "cancelled"
    assert time.monotonic() - began < kit.store.delay_s
    assert isinstance((await kit.end_of("a"))[-1], Done)


@pytest.mark.usefixtures("first_frame_knows_the_session")
async def test_a_session_that_the_store_lost_goes_on(kit: Kit) -> None:
    await kit.run(chat("a", **given()))
    kit.store.records.clear()
    frames = await kit.run(chat("b", **given()))
    assert isinstance(frames[0], Accepted)
    assert frames[0].session_turns == 1
    (record,) = kit.store.records.values()
    assert (record.turns, len(record.messages)) == (2, 4)


@pytest.mark.usefixtures("first_frame_knows_the_session")
async def test_a_session_deleted_in_the_store_is_not_brought_back(kit: Kit) -> None:
    await kit.run(chat("a", **given()))
    kit.store.deleted = set(kit.store.records)
    kit.store.records.clear()
    frames = await kit.run(chat("b", **given()))
    assert isinstance(frames[0], Accepted)
    assert frames[0].session_turns == 0
    assert kit.store.records["default", "s"].version == 1


@pytest.mark.usefixtures("first_frame_knows_the_session")
async def test_a_later_turn_of_another_group_wins(kit: Kit) -> None:
    await kit.run(chat("a", "one", **given()))
    other = SessionRecord(
        session_id="s",
        tenant="default",
        model="demo",
        version=7,
        turns=5,
        messages=[ChatMessage(role="user", content="elsewhere")],
    )
    kit.store.records["default", "s"] = other
    frames = await kit.run(chat("b", "two", **given()))
    assert isinstance(frames[0], Accepted)
    assert frames[0].session_turns == 5
    assert kit.store.records["default", "s"].messages[0].content == "elsewhere"
    assert kit.store.records["default", "s"].version == 8


@pytest.mark.parametrize("by", ["cancel", "stop"])
async def test_a_turn_that_only_waits_for_its_record_is_done(memory_bus: MemoryBus, by: str) -> None:
    quick = record_limits(commit_timeout_s=0.05)
    async with Kit(memory_bus, session_done_wait_s=5.0, sessions=quick) as kit:
        kit.expected_errors.add("session records not stored")
        await kit.run(chat("a", **given()))
        kit.store.away = True
        await kit.ask(chat("b", **given()))
        await kit.until(lambda: len(tokens_of(kit.frames["b"])) == 16)
        if by == "cancel":
            await kit.bus.publish(subjects.CANCEL_ALL, codec.encode(Cancel(request_id="b")))
        else:
            await kit.leader.stop()
        assert isinstance((await kit.end_of("b", timeout_s=1.0))[-1], Done)


async def test_the_end_of_a_call_with_a_key_waits_for_its_record_though_its_caller_left(
    memory_bus: MemoryBus,
) -> None:
    """A repetition of the call then gets that end frame with the outcome of the turn."""
    quick = record_limits(commit_timeout_s=0.05)
    async with Kit(memory_bus, session_done_wait_s=5.0, sessions=quick) as kit:
        kit.expected_errors.add("session records not stored")
        await kit.run(chat("a", **given()))
        kit.store.away = True
        await kit.ask(chat("b", **given(), call_key="k", call_digest="d"))
        await kit.until(lambda: len(tokens_of(kit.frames["b"])) == 16)
        await kit.bus.publish(subjects.CANCEL_ALL, codec.encode(Cancel(request_id="b")))
        await asyncio.sleep(0.1)
        assert not isinstance(kit.frames["b"][-1], Done)
        kit.store.away = False
        done = (await kit.end_of("b"))[-1]
        assert isinstance(done, Done)
        assert done.session is not None
        assert done.session.stored == "stored"


def record(session_id: str, version: int = 1, text: str = "x", tenant: str = "t") -> SessionRecord:
    said = [ChatMessage(role="user", content=text)]
    return SessionRecord(session_id=session_id, tenant=tenant, model="m", version=version, messages=said)


async def test_bounds_hold_while_the_store_is_away() -> None:
    store, metrics = DictStore(), WorkerMetrics(CollectorRegistry())
    store.away = True
    sessions = SessionRecords(
        store, record_limits(session_cache_bytes=20_000, max_pending=10), metrics, lambda: 4000
    )
    waiting = [sessions.commit(record(f"s{number}", text="y" * 200)) for number in range(30)]
    assert sessions.writer.num_pending == 10
    assert 5 < sessions.num_cached < 20
    assert [future.done() for future in waiting] == [True] * 20 + [False] * 10
    with pytest.raises(Unavailable):
        await sessions.lookup("t", "s0")
    assert await sessions.writer.flush_records(0.1) is False
    store.away = False
    assert await sessions.writer.flush_records(1.0)
    assert [future.result().outcome for future in waiting] == ["dropped"] * 20 + ["stored"] * 10
    assert store.commits == 10  # a message holds at most 4000 / 2 bytes, here one record
    stale = sessions.commit(record("s29", version=1))
    await sessions.writer.flush_records(1.0)
    assert stale.result().outcome == "stale"
    assert (await sessions.lookup("t", "s29")) == store.records["t", "s29"]


async def test_a_turn_that_ends_late_does_not_undo_those_after_the_other() -> None:
    store = DictStore()
    store.away = True
    sessions = SessionRecords(store, record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    first, second = sessions.commit(record("s", 1, "fast")), sessions.commit(record("s", 2, "fast, next"))
    assert (await sessions.commit(record("s", 1, "slow"))).outcome == "stale"
    newest = await sessions.lookup("t", "s")
    assert newest is not None
    assert newest.messages[0].content == "fast, next"
    store.away = False
    assert await sessions.writer.flush_records(1.0)
    assert first.result().outcome == second.result().outcome == "stored"
    assert store.records["t", "s"].messages[0].content == "fast, next"


async def test_what_waits_to_be_stored_is_known_with_a_full_cache_too() -> None:
    store = DictStore()
    store.records["t", "s"] = record("s", 1, "older")
    limits = record_limits(session_cache_bytes=2000)
    sessions = SessionRecords(store, limits, WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    sessions.commit(record("s", 2, "newer"))
    for number in range(9):
        sessions.commit(record(f"other{number}", text="y" * 200))
    found = await sessions.lookup("t", "s")
    assert found is not None
    assert found.messages[0].content == "newer"


async def test_a_session_deleted_and_begun_anew_elsewhere_does_not_get_its_past_back() -> None:
    store = DictStore()
    sessions = SessionRecords(store, record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    sessions.commit(msgspec.structs.replace(record("s", 5, "deleted"), created_ms=1))
    assert await sessions.writer.flush_records(1.0)
    store.records["t", "s"] = msgspec.structs.replace(record("s", 1, "anew"), created_ms=2)
    found = await sessions.lookup("t", "s")
    assert found is not None
    assert found.messages[0].content == "anew"
    sessions.commit(msgspec.structs.replace(found, version=2))
    assert await sessions.writer.flush_records(1.0)
    assert store.records["t", "s"].version == 2


async def test_an_answer_of_the_store_that_makes_no_sense_is_as_good_as_none() -> None:
    class Broken(DictStore):
        async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
            raise Internal("an answer cannot be read")

    sessions = SessionRecords(Broken(), record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    with pytest.raises(Unavailable, match="session store"):
        await sessions.lookup("t", "s")
    sessions.commit(record("s", 1))
    assert await sessions.lookup("t", "s") == record("s", 1)


async def test_commits_of_one_session_are_joined() -> None:
    store = DictStore()
    sessions = SessionRecords(store, record_limits(), WorkerMetrics(CollectorRegistry()), lambda: 2**20)
    run = asyncio.create_task(sessions.writer.write_forever())
    futures = [sessions.commit(record("s", version)) for version in range(1, 6)]
    assert {commit.outcome for commit in await asyncio.gather(*futures)} == {"stored"}
    assert store.records["t", "s"].version == 5
    assert store.commits == 1
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


def test_record_sizes_are_not_underestimated() -> None:
    big = SessionRecord(
        session_id="s" * 128,
        tenant="t" * 64,
        model="m" * 64,
        version=2**40,
        messages=[ChatMessage(role="assistant", content="😀" * 100, name="é" * 9)] * 20,
        token_ids=b"1234" * 100,
        last_group="g" * 64,
        turns=10**6,
        created_ms=2**45,
        updated_ms=2**45,
        last_request="r" * 64,
    )
    mark = TurnMark(
        request_id="r" * 64,
        version=2**40,
        size=2**40,
        whole=True,
        call_key="k" * 255,
        call_digest="d" * 64,
        replaces="p" * 64,
    )
    for one in (big, msgspec.structs.replace(big, messages=[], recent=[mark] * MAX_MARKS, token_ids=b"")):
        wide = msgspec.structs.replace(one, session_id="\U0001f600" * 128, model="\U0001f600" * 128)
        for each in (one, wide):
            assert record_bytes(each) >= len(codec.encode(SessionCommit(records=[each])))


def made(limits: SessionRecordLimits, store: DictStore, max_payload: int = 2**20) -> SessionRecords:
    return SessionRecords(store, limits, WorkerMetrics(CollectorRegistry()), lambda: max_payload)


@pytest.mark.parametrize(
    "limits", [record_limits(max_pending=20), record_limits(session_pending_bytes=20_000)]
)
async def test_a_flood_that_cannot_be_stored_costs_no_other_tenant_a_turn(
    limits: SessionRecordLimits,
) -> None:
    store = DictStore()
    store.away = True
    sessions = made(limits, store)
    early = [sessions.commit(record(f"b{number}", tenant="bob")) for number in range(3)]
    with structlog.testing.capture_logs() as logs:
        flood = [sessions.commit(record(f"a{number}", text="y" * 200)) for number in range(100)]
    late = sessions.commit(record("b9", tenant="bob"))
    assert sessions.writer.num_pending <= 20
    store.away = False
    assert await sessions.writer.flush_records(5.0)
    assert [future.result().outcome for future in (*early, late)] == ["stored"] * 4
    assert flood[0].result().outcome == "dropped"
    assert flood[-1].result().outcome == "stored"
    assert [(line["subject"], "RYZ_SESSION_PENDING_BYTES" in line["remedy"]) for line in logs] == [
        ("t", True)
    ]


async def test_what_is_known_of_a_tenant_s_sessions_outlives_another_s_flood() -> None:
    store = DictStore()
    sessions = made(record_limits(session_cache_bytes=20_000), store)
    sessions.commit(record("mine", tenant="bob"))
    for number in range(100):
        sessions.commit(record(f"a{number}"))
    assert await sessions.writer.flush_records(5.0)
    assert sessions.newest("bob", "mine") is not None
    assert sessions.newest("t", "a0") is None
    assert sessions.newest("t", "a99") is not None
    assert [one.session_id for one in sessions.newest_first()[:3]] == ["mine", "a99", "a98"]


class Batches(DictStore):
    """Keeps the ids of the records of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        self.batches.append([one.session_id for one in records])
        return await super().commit(records, timeout_s=timeout_s)


async def test_records_that_no_turn_waits_for_are_written_together() -> None:
    store = Batches()
    sessions = made(record_limits(), store, 1_000_000)
    writing = asyncio.create_task(sessions.writer.write_forever())
    first = sessions.commit(record("first"), hurry=False)
    await asyncio.sleep(0)
    second = sessions.commit(record("second"), hurry=False)
    for outcome in await asyncio.gather(first, second):
        assert outcome.outcome == "stored"
    assert store.batches == [["first", "second"]]
    sessions.commit(record("third"), hurry=False)
    await sessions.commit(record("waited-for"))  # takes the one that waits for others with it
    assert store.batches[1:] == [["third", "waited-for"]]
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_records_are_written_in_rotation_of_tenants() -> None:
    """Large records of one tenant, each a message of its own, do not delay the records of other tenants."""

    store = Batches()
    sessions = made(record_limits(), store, 8000)
    for number in range(5):
        sessions.commit(record(f"a{number}", text="y" * 800))
    for number in range(3):
        sessions.commit(record(f"b{number}", tenant="bob"))
    sessions.commit(record("c", text="y" * 800, tenant="carl"))
    assert await sessions.writer.flush_records(1.0)
    assert store.batches[:3] == [["a0"], ["b0", "b1", "b2"], ["c"]]


@pytest.mark.parametrize(
    ("problem", "outcome"), [(RequestTooLarge, "too_large"), (InvalidRequest, "refused")]
)
async def test_a_record_that_is_refused_takes_no_other_with_it(
    problem: type[RequestTooLarge | InvalidRequest], outcome: str
) -> None:
    class Strict(DictStore):
        async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
            if any(one.session_id == "bad" for one in records):
                raise problem("no")
            return await super().commit(records, timeout_s=timeout_s)

    store = Strict()
    sessions = made(record_limits(), store)
    futures = {
        name: sessions.commit(record(name, tenant=tenant))
        for tenant, name in (("a", "1"), ("a", "bad"), ("a", "2"), ("b", "3"), ("b", "4"))
    }
    assert await sessions.writer.flush_records(1.0)
    outcomes = {name: future.result().outcome for name, future in futures.items()}
    assert outcomes == dict.fromkeys("1234", "stored") | {"bad": outcome}


@pytest.mark.parametrize("away", [False, True])
async def test_an_old_copy_does_not_bring_a_session_back(*, away: bool) -> None:
    store = DictStore()
    sessions = SessionRecords(
        store, record_limits(copy_s=0.2), WorkerMetrics(CollectorRegistry()), lambda: 2**20
    )
    sessions.commit(record("s", 3, "deleted long ago"))
    assert await sessions.writer.flush_records(1.0)
    (kept,) = store.records.values()
    store.records.clear()  # the event of the deletion was lost, and the store no longer remembers it
    assert sessions.vouched("t", "s") == await sessions.lookup("t", "s") == kept
    await asyncio.sleep(0.25)
    store.away = away
    assert sessions.vouched("t", "s") is None  # the answer to other leaders
    if away:
        with pytest.raises(Unavailable, match="is not known"):
            await sessions.lookup("t", "s")
    else:
        assert await sessions.lookup("t", "s") is None
        assert sessions.newest("t", "s") is None


async def test_a_copy_is_as_young_as_the_store_s_last_word() -> None:
    store = DictStore()
    sessions = SessionRecords(
        store, record_limits(copy_s=0.3), WorkerMetrics(CollectorRegistry()), lambda: 2**20
    )
    sessions.commit(record("s", 3))
    assert await sessions.writer.flush_records(1.0)
    for _ in range(3):
        await asyncio.sleep(0.15)
        assert await sessions.lookup("t", "s") is not None
    store.away = True
    assert await sessions.lookup("t", "s") is not None


async def test_an_old_turn_that_waits_to_be_stored_is_waited_for() -> None:
    store = DictStore()
    sessions = SessionRecords(
        store, record_limits(copy_s=0.1), WorkerMetrics(CollectorRegistry()), lambda: 2**20
    )
    waiting = sessions.commit(record("s", 3))
    await asyncio.sleep(0.15)
    with pytest.raises(Unavailable):
        await sessions.lookup("t", "s")
    assert await sessions.writer.flush_records(1.0)
    assert waiting.result().outcome == "stored"
    assert await sessions.lookup("t", "s") == store.records["t", "s"]
