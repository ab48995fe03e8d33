"""Versions, cursors, order in lists, and the circuit before the store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstate.domain.records import Verdict, judge, make_cursor, make_entry, read_cursor
from shared.circuit import Circuit, CircuitLimits
from shared.errors import InvalidRequest
from shared.messages import SessionRecord


@given(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=2)), max_size=20))
def test_the_stored_version_never_falls(commits: list[tuple[int, bytes]]) -> None:
    version: int | None = None
    record: bytes | None = None
    for new_version, new_record in commits:
        verdict = judge(version, record, new_version, new_record)
        if verdict is Verdict.STORE:
            assert version is None or new_version > version
            version, record = new_version, new_record
        elif verdict is Verdict.KEEP:
            assert (version, record) == (new_version, new_record)
        else:
            assert version is not None
            assert new_version <= version


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


def test_time_outs_open_the_circuit_only_in_a_row() -> None:
    circuit = Circuit(CircuitLimits(failures=3, probe_s=0.25))
    assert not circuit.failed(0.0, refused=False)
    assert not circuit.failed(0.0, refused=False)
    circuit.succeeded()
    assert not circuit.failed(0.0, refused=False)
    assert not circuit.failed(0.0, refused=False)
    assert circuit.failed(1.0, refused=False)
    assert circuit.open
    assert circuit.retry_after_s(1.1) == pytest.approx(0.15)


def test_a_refused_connection_opens_it_at_once_and_an_answer_closes_it() -> None:
    circuit = Circuit(CircuitLimits())
    assert circuit.failed(0.0, refused=True)
    assert not circuit.failed(0.1, refused=True)
    assert circuit.succeeded()
    assert not circuit.open
    assert not circuit.succeeded()
    assert circuit.opened_total == 1
