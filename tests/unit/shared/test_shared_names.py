"""Names that callers choose: no character may control a terminal or make a name look like another."""

import re
import unicodedata

import pytest

from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest, ModelCard, Pinned, SessionGet, SessionRef, SessionSummary
from shared.messages.base import NAME_PATTERN

MARKS = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_controls_and_marks_of_direction_are_no_part_of_a_name() -> None:
    refused = {code for code in range(0x3000) if not re.match(NAME_PATTERN, chr(code))}
    controls = {code for code in range(0x3000) if unicodedata.category(chr(code)) == "Cc"}
    assert refused == controls | {0x20} | set(map(ord, MARKS))


@pytest.mark.parametrize("name", ["über", "漢字", "مرحبا", "a/b:c#d?e", "👩\u200d💻", "x" * 128])
def test_other_text_is(name: str) -> None:
    assert decode(encode(SessionGet(tenant="t", session_id=name)), SessionGet).session_id == name


@pytest.mark.parametrize("mark", ["\x1b", "\x9b", *MARKS])
def test_no_message_brings_one_in(mark: str) -> None:
    name = f"a{mark}b"
    session = SessionRef(session_id=name)
    for message in (
        SessionGet(tenant="t", session_id=name),
        GenerateRequest(request_id="r", model="demo", prompt="p", session=session),
        GenerateRequest(request_id="r", model=name, prompt="p"),
        ModelCard(name=name, context_length=8),
    ):
        with pytest.raises(InvalidRequest):
            decode(encode(message), type(message))


def test_a_stored_name_that_none_may_have_now_spoils_no_list() -> None:
    """Records of an earlier version stay readable until they expire."""
    pin = Pinned(tenant="t", session_id="a\x9bb", group="g0")
    assert decode(encode(pin), Pinned) == pin
    known = SessionSummary(
        session_id="a\x9bb", tenant="t", model="m", version=1, turns=1, num_messages=1, num_tokens=1,
        last_group="", created_ms=0, updated_ms=0,
    )  # fmt: skip
    assert decode(encode(known), SessionSummary) == known
