"""Rules of the KV state service: versions, cursors, order in lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstate.domain.session_merge import (
    SessionEntry,
    StoredSession,
    Verdict,
    judge,
    make_cursor,
    make_entry,
    read_cursor,
)
from services.kvstate.domain.session_quota import SessionQuotas
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, SessionRecord, SessionSummary


def entry(version: int, record: bytes = b"", *, created_ms: int = 0, updated_ms: int = 0) -> SessionEntry:
    return SessionEntry(
        tenant="t",
        session_id="s",
        version=version,
        record=record,
        summary=b"",
        score_ms=0,
        created_ms=created_ms,
        updated_ms=updated_ms,
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=2)), max_size=20))
def test_the_stored_version_never_falls(commits: list[tuple[int, bytes]]) -> None:
    stored = StoredSession()
    for version, record in commits:
        verdict = judge(stored, entry(version, record))
        if verdict is Verdict.STORE:
            assert version > stored.version
            stored = StoredSession(version, record)
        elif verdict is Verdict.KEEP:
            assert (version, record) == (stored.version, stored.record)
        else:
            assert version <= stored.version


@pytest.mark.parametrize(
    ("stored", "late_ms", "verdict"),
    [
        (StoredSession(), 0, Verdict.STORE),
        (StoredSession(), 899, Verdict.STORE),
        (StoredSession(), 900, Verdict.DELETED),  # too late: a tombstone of that time may be gone soon
        (StoredSession(deleted_ms=500), 0, Verdict.DELETED),
        (StoredSession(deleted_ms=499), 0, Verdict.STORE),
        (StoredSession(2), 900, Verdict.STORE),  # a stored session was not deleted
        (StoredSession(2, deleted_ms=500), 0, Verdict.DELETED),  # another session has the id now
    ],
)
def test_a_deleted_session_does_not_come_back(stored: StoredSession, late_ms: int, verdict: Verdict) -> None:
    assert judge(stored, entry(3, created_ms=500, updated_ms=900), late_ms) is verdict


def test_a_first_turn_may_come_late() -> None:
    assert judge(StoredSession(), entry(1, created_ms=500, updated_ms=500), 900) is Verdict.STORE


@pytest.mark.parametrize(
    ("session_id", "turns", "last_request", "spare"),
    [
        ("s-0123456789abcdef-0123456789abcdef", 1, "r-1", True),
        ("s-0123456789abcdef-0123456789abcdef", 2, "r-1", False),  # the caller came back to the session
        ("s-0123456789abcdef-0123456789abcdef", 1, "", False),  # imported
        ("tea", 1, "r-1", False),
    ],
)
def test_a_session_is_spare_until_a_caller_wants_it(
    session_id: str, turns: int, last_request: str, *, spare: bool
) -> None:
    record = SessionRecord(
        session_id=session_id, tenant="t", model="m", version=1, turns=turns, last_request=last_request
    )
    assert make_entry(record, 1000, 100).spare is spare


@pytest.mark.parametrize(
    ("configured", "maxmemory", "tenants", "bytes_for"),
    [(0, 0, 1, 2**30), (0, 10_000, 0, 1000), (0, 10_000, 1, 1000), (0, 10_000, 3, 500), (7, 10_000, 3, 7)],
)
def test_bytes_of_a_tenant_follow_redis(
    configured: int, maxmemory: int, tenants: int, bytes_for: int
) -> None:
    assert SessionQuotas(session_bytes_per_tenant=configured).bytes_for(maxmemory, tenants) == bytes_for


@given(st.integers(0, 10**15), st.text(min_size=1, max_size=40))
def test_a_cursor_survives_the_way_out_and_back(score_ms: int, session_id: str) -> None:
    cursor = read_cursor(make_cursor(score_ms, session_id))
    assert cursor is not None
    assert (cursor.score_ms, cursor.session_id) == (score_ms, session_id)


@pytest.mark.parametrize("text", ["x", "1", ":", "1:", ":a", "-1:a", "1.5:a", "9" * 17 + ":a"])
def test_a_foreign_cursor_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor") as caught:
        read_cursor(text)
    assert caught.value.data["param"] == "cursor"


def test_no_cursor_is_the_start() -> None:
    assert read_cursor("") is None


@pytest.mark.parametrize(("updated_ms", "score_ms"), [(0, 1000), (950, 950), (1001, 1000), (899, 1000)])
def test_a_wrong_clock_does_not_decide_the_order(updated_ms: int, score_ms: int) -> None:
    record = SessionRecord(session_id="s", tenant="t", model="m", version=1, updated_ms=updated_ms)
    assert make_entry(record, 1000, 100).score_ms == score_ms


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("", ""),
        ("  My cat\n is\tcalled   Miso. ", "My cat is called Miso."),
        ("x" * 96, "x" * 96),
        ("x" * 97, "x" * 93 + "…"),
        ("茶" * 50, "茶" * 31 + "…"),
        ("word " * 100_000, ("word " * 19)[:93].rstrip() + "…"),
    ],
)
def test_the_title_is_the_beginning_of_the_first_user_message(said: str, title: str) -> None:
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=said)]
    record = SessionRecord(session_id="s", tenant="t", model="m", version=1, messages=messages)
    assert decode(make_entry(record, 0, 1000).summary, SessionSummary).title == title
    assert len(title.encode()) <= 96
