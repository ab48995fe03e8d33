"""Conditions that a caller may set for a turn of its session."""

import pytest

from services.gateway.answering.intake.new_calls import with_conditions
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, SessionRef

USER = [ChatMessage(role="user", content="x")]
WHOLE = [*USER, ChatMessage(role="assistant", content="y"), *USER]
MADE = "s-0123456789abcdef-0123456789abcdef"


@pytest.mark.parametrize(
    ("headers", "body", "must_exist", "if_version"),
    [
        ({}, None, False, -1),
        ({b"x-session-must-exist": b"True"}, None, True, -1),
        ({b"x-session-must-exist": b"0"}, True, False, -1),
        ({}, True, True, -1),
        ({b"if-match": b"*"}, None, True, -1),
        ({b"if-match": b'"3"'}, None, False, 3),
        ({b"if-match": b"12"}, None, False, 12),
        ({b"if-match": b'W/"7"'}, None, False, 7),
        ({b"if-none-match": b"*"}, None, False, 0),
    ],
)
def test_demands_come_by_header_or_body(
    headers: dict[bytes, bytes], body: bool | None, must_exist: bool, if_version: int
) -> None:
    found = with_conditions(SessionRef(session_id="s"), headers, body, USER)
    assert found == SessionRef(session_id="s", must_exist=must_exist, if_version=if_version)


def test_a_made_id_that_comes_back_must_have_a_session_if_the_turn_needs_it() -> None:
    def must_exist(messages: list[ChatMessage], **fields: str) -> bool:
        found = with_conditions(SessionRef(session_id=MADE, **fields), {}, None, messages)  # type: ignore[arg-type]
        assert found is not None
        return found.must_exist

    assert must_exist(USER)
    assert must_exist(WHOLE, mode="append")
    assert not must_exist(WHOLE)
    assert not must_exist(USER, mode="replace")
    asked = with_conditions(SessionRef(session_id=MADE), {b"x-session-must-exist": b"false"}, None, USER)
    assert asked == SessionRef(session_id=MADE)


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({b"if-match": b"yesterday"}, "if-match"),
        ({b"if-match": b'"1", "2"'}, "if-match"),
        ({b"if-match": b""}, "if-match"),
        ({b"if-none-match": b'"3"'}, "if-none-match"),
        ({b"if-none-match": b"3"}, "if-none-match"),
        ({b"if-none-match": b""}, "if-none-match"),
        ({b"if-none-match": b"*", b"if-match": b'"3"'}, "if-none-match"),
        ({b"if-none-match": b"*", b"if-match": b"*"}, "if-none-match"),
        ({b"x-session-must-exist": b"maybe"}, "x-session-must-exist"),
    ],
)
def test_what_cannot_be_read_is_named(headers: dict[bytes, bytes], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_conditions(SessionRef(session_id="s"), headers, None, USER)
    assert caught.value.data["param"] == param


@pytest.mark.parametrize("headers", [{b"if-match": b"1"}, {b"x-session-must-exist": b"true"}])
def test_a_demand_needs_a_session(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest, match="need a session"):
        with_conditions(None, headers, None, USER)
    assert with_conditions(None, {}, None, USER) is None
