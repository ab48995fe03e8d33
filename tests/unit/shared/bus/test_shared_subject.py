"""Subjects are checked by string methods where they are plain ASCII, as the expression would check them."""

from hypothesis import example, given
from hypothesis import strategies as st

from shared.bus.subject import _PLAIN, _is_plain


@given(st.text("ab.*> \t\x1f\x7f\xa0é\n", max_size=8) | st.text(max_size=8))
@example("")
@example(".")
@example("a.")
@example(".a")
@example("a..b")
@example("a.b*")
def test_the_quick_check_agrees_with_the_expression(subject: str) -> None:
    assert _is_plain(subject) == (_PLAIN.fullmatch(subject) is not None)
