"""Session ids, request ids and time limits in headers."""

import pytest

from services.gateway.admission.request_headers import given_session, request_ids, time_limit_s
from shared.errors import InvalidRequest
from shared.messages import SessionRef


@pytest.mark.parametrize("header", [b"x-session-id", b"x-dynamo-session-id", b"x-smg-routing-key"])
def test_a_session_comes_by_any_of_the_known_headers(header: bytes) -> None:
    session = given_session({header: "Käse-1".encode(), b"x-session-mode": b"Append"}, "from-body")
    assert session == SessionRef(session_id="Käse-1", given=True, mode="append")


def test_a_session_comes_by_the_body_or_not_at_all() -> None:
    assert given_session({}, "from-body") == SessionRef(session_id="from-body")
    assert given_session({}, None) is None
    assert given_session({b"x-session-id": b""}, "") is None


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({b"x-session-id": b"a b"}, None, "x-session-id"),
        ({b"x-smg-routing-key": b"x" * 129}, None, "x-smg-routing-key"),
        ({}, "a\n", "session_id"),
        ({}, "a\u202eb", "session_id"),
        ({b"x-session-id": "a\x9bb".encode()}, None, "x-session-id"),
        ({b"x-session-id": b"a\x9bb"}, None, "x-session-id"),
        ({b"x-session-id": b"s", b"x-session-mode": b"merge"}, None, "x-session-mode"),
        ({b"x-session-mode": b"append"}, None, "x-session-mode"),
    ],
)
def test_wrong_session_headers_are_named(headers: dict[bytes, bytes], body: str | None, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        given_session(headers, body)
    assert caught.value.data["param"] == param


def test_a_callers_request_id_is_shown_but_never_travels_alone() -> None:
    assert request_ids({b"x-request-id": b"abc"}, "made") == ("abc", "abc-made")
    assert request_ids({b"x-request-id": b"no good"}, "made") == ("made", "made")
    assert request_ids({b"x-request-id": b"a\n"}, "made") == ("made", "made")
    shown, travels = request_ids({b"x-request-id": b"x" * 64}, "m" * 32)
    assert (shown, len(travels), travels[-33:]) == ("x" * 64, 60, "-" + "m" * 32)
    assert request_ids({}, "made") == ("made", "made")


def test_a_time_limit_is_bounded_and_the_header_wins() -> None:
    def limit(headers: dict[bytes, bytes], body: float | None) -> float:
        return time_limit_s(headers, body, default_s=60, max_s=600)

    assert limit({}, None) == 60
    assert limit({}, 5.0) == 5.0
    assert limit({b"x-request-timeout": b"2.5"}, 5.0) == 2.5
    assert limit({b"x-request-timeout": b"1e9"}, None) == 600
    for wrong in (b"0", b"-1", b"nan", b"inf", b"soon"):
        with pytest.raises(InvalidRequest) as caught:
            limit({b"x-request-timeout": wrong}, None)
        assert caught.value.data["param"] == "x-request-timeout"
