"""Subjects are checked by string methods where they are plain ASCII, as the expression would check them."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import subjects
from shared.bus.subject import MAX_SUBJECT_BYTES, can_answer, check_subject
from shared.errors import InvalidRequest
from tests.kits.held_objects import num_held

PLAIN = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")  # where one can publish


@given(st.text("ab.*> \t\x1f\x7f\xa0é\n", max_size=8) | st.text(max_size=8))
@example("")
@example(".")
@example("a.")
@example(".a")
@example("a..b")
@example("a.b*")
def test_the_quick_check_agrees_with_the_expression(subject: str) -> None:
    if PLAIN.fullmatch(subject):
        check_subject(subject)
    else:
        with pytest.raises(InvalidRequest):
            check_subject(subject)


def test_a_text_that_is_too_long_for_a_subject_is_no_place_for_answers_and_is_not_kept() -> None:
    fits: list[object] = ["a" * MAX_SUBJECT_BYTES]
    too_long: list[object] = ["a" * (MAX_SUBJECT_BYTES + 1)]
    assert can_answer(str(fits[0]))
    assert not can_answer(str(too_long[0]))
    assert (num_held(fits), num_held(too_long)) == (1, 0)
    assert not can_answer("é" * MAX_SUBJECT_BYTES)


def test_the_tenant_is_the_one_that_the_broker_vouches_for() -> None:
    outside = subjects.generate("m", subjects.OutsideService("acme", "billing"))
    assert subjects.tenant_of(outside, "other") == "acme"
    assert subjects.tenant_of(subjects.generate("m"), "other") == "other"
