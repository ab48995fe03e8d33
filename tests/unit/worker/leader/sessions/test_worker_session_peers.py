"""Which record of a session is used: the store's, this leader's, or that of the last turn's leader."""

from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_announcer import TurnAnnouncer
from services.worker.metrics import WorkerMetrics
from shared.errors import SessionNotFound, Unavailable
from shared.messages import ChatMessage, SessionRecord
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.worker.leader import DictStore
from tests.kits.worker.options import record_limits


def record(version: int, group: str = "g0", created_ms: int = 100) -> SessionRecord:
    return SessionRecord(
        session_id="s",
        tenant="t",
        model="m",
        version=version,
        messages=[ChatMessage(role="user", content=f"{group} {version}")],
        last_group=group,
        created_ms=created_ms,
    )


class Deleted(DictStore):
    """A store that remembers a deletion."""

    async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
        raise SessionNotFound("no session s", deleted=True, deleted_ms=150)


def peer_with(known: SessionRecord | None) -> Callable[[str, str, str], Awaitable[SessionRecord]]:
    async def ask(group: str, tenant: str, session_id: str) -> SessionRecord:
        assert (group, tenant, session_id) == ("g1", "t", "s")
        if known is None:
            raise SessionNotFound("g1 knows no session s")
        return known

    return ask


def sessions_of(
    store: DictStore, known: SessionRecord | None, *own: SessionRecord
) -> tuple[SessionRecords, WorkerMetrics]:
    metrics = WorkerMetrics(CollectorRegistry())
    sessions = SessionRecords(store, record_limits(), metrics, lambda: 2**20, peer_with(known))
    for one in own:
        sessions.commit(one)
    return sessions, metrics


async def test_a_turn_that_the_store_does_not_have_yet_is_had_from_its_leader() -> None:
    store = DictStore()
    store.records["t", "s"] = record(1, "g1")  # an older version, from the last turn's group
    sessions, _ = sessions_of(store, record(3, "g1"), record(2))
    assert await sessions.lookup("t", "s", "g1") == record(3, "g1")
    assert sessions.newest("t", "s") == record(3, "g1")  # also before its own record is stored
    assert await sessions.writer.flush_records(1.0)
    assert store.records["t", "s"] == record(2)


async def test_what_the_store_has_counts_when_no_leader_has_more() -> None:
    store = DictStore()
    store.records["t", "s"] = record(4, "g1")
    for known in (None, record(3, "g1"), record(9, "g1", created_ms=7)):
        sessions, _ = sessions_of(store, known)
        assert await sessions.lookup("t", "s", "g1") == record(4, "g1")


async def test_a_lost_session_lives_on_with_the_leader_of_its_last_turn() -> None:
    sessions, _ = sessions_of(DictStore(), record(3, "g1"))
    assert await sessions.lookup("t", "s", "g1") == record(3, "g1")
    assert sessions.newest("t", "s") == record(3, "g1")  # for the next lookups here
    sessions, _ = sessions_of(DictStore(), None)
    assert await sessions.lookup("t", "s", "g1") is None


async def test_an_old_copy_is_no_answer_while_the_last_turn_is_not_known() -> None:
    store = DictStore()
    store.away = True
    sessions, metrics = sessions_of(store, None, record(1))
    assert await sessions.lookup("t", "s") == record(1)  # the last turn was here
    with pytest.raises(Unavailable, match="send the whole conversation"):
        await sessions.lookup("t", "s", "g1")
    sessions, metrics = sessions_of(store, record(2, "g1"), record(1))
    assert await sessions.lookup("t", "s", "g1") == record(2, "g1")
    (by_peers,) = metrics.session_lookups.labels("peer").collect()
    assert by_peers.samples[0].value == 1


async def test_a_deleted_session_is_not_brought_back_by_who_has_not_heard_of_it() -> None:
    sessions, _ = sessions_of(Deleted(), record(3, "g1", created_ms=100), record(2, created_ms=100))
    assert await sessions.lookup("t", "s", "g1") is None
    assert sessions.newest("t", "s") is None


async def test_a_session_begun_anew_after_a_deletion_is_not_lost_with_it() -> None:
    sessions, _ = sessions_of(Deleted(), None, record(1, created_ms=200))
    assert await sessions.lookup("t", "s") == record(1, created_ms=200)
    sessions, _ = sessions_of(Deleted(), record(2, "g1", created_ms=200))
    assert await sessions.lookup("t", "s", "g1") == record(2, "g1", created_ms=200)


@pytest.mark.sources
async def test_turns_are_reported_as_they_end_and_in_order_while_the_store_is_away() -> None:
    store, reported = DictStore(), list[int]()
    store.away = True

    class Announcer(TurnAnnouncer):
        async def announce(self, records: list[SessionRecord]) -> None:
            reported.extend(one.version for one in records)

    announcer = Announcer("g0", MemoryBus(MemoryBroker()))
    sessions = SessionRecords(
        store,
        record_limits(),
        WorkerMetrics(CollectorRegistry()),
        lambda: 2**20,
        announcer=announcer,
    )
    for version in (1, 2, 2, 3):  # the second version 2 is stale
        sessions.commit(record(version))
    await sessions.writer.flush_records(0.05)
    assert reported == [1, 2, 3]
