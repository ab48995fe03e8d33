"""Subjects are checked by string methods where they are plain ASCII, as the expression would check them."""

from hypothesis import example, given
from hypothesis import strategies as st

from shared import subjects
from shared.bus.subject import _PLAIN, MAX_SUBJECT_BYTES, _can_answer, _is_plain, can_answer


@given(st.text("ab.*> \t\x1f\x7f\xa0é\n", max_size=8) | st.text(max_size=8))
@example("")
@example(".")
@example("a.")
@example(".a")
@example("a..b")
@example("a.b*")
def test_the_quick_check_agrees_with_the_expression(subject: str) -> None:
    assert _is_plain(subject) == (_PLAIN.fullmatch(subject) is not None)


def test_a_text_that_is_too_long_for_a_subject_is_no_place_for_answers_and_is_not_kept() -> None:
    before = _can_answer.cache_info().currsize
    assert not can_answer("a" * (MAX_SUBJECT_BYTES + 1))
    assert _can_answer.cache_info().currsize == before
    assert can_answer("a" * MAX_SUBJECT_BYTES)
    assert not can_answer("é" * MAX_SUBJECT_BYTES)


def test_the_tenant_is_the_one_that_the_broker_vouches_for() -> None:
    outside = subjects.generate("m", subjects.Caller("acme", "billing"))
    assert subjects.tenant_of(outside, "other") == "acme"
    assert subjects.tenant_of(subjects.generate("m"), "other") == "other"
