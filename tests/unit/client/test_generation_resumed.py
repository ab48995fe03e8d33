"""What a client keeps of the engines that wrote an answer, and which refusals no later attempt changes."""

from msgspec.structs import replace

from shared.errors import InvalidRequest, Unavailable
from shared.messages import Done, Usage
from tests.unit.client.test_generation_losses import accepted, failed, running, tokens


def test_an_answer_that_is_a_text_of_several_engines_stays_one_for_later_groups() -> None:
    state = running()
    state.on_group_down("g0", "i0", "silent", 2.0)
    state.on_frame(replace(accepted(1, 3, "g1", "i1"), resumed="text"), "g1", 2.1)
    state.on_frame(tokens(4, 9, attempt=1), "g1", 2.2)
    state.on_group_down("g1", "i1", "silent", 2.3)
    point = state.attempts.resume_point(5)
    assert point is not None
    assert point.resumed == "text"
    state.on_frame(replace(accepted(2, 5, "g2", "i2"), resumed="text"), "g2", 2.4)
    state.on_frame(Done(request_id="r1", attempt=2, seq=6, usage=Usage(), resumed="text"), "g2", 2.5)
    assert state.finished
    assert state.answer.resumed == "text"


def test_an_answer_of_one_engine_says_nothing() -> None:
    state = running()
    state.on_group_down("g0", "i0", "silent", 2.0)
    point = state.attempts.resume_point(3)
    assert point is not None
    assert point.resumed == ""
    state.on_frame(accepted(1, 3, "g1", "i1"), "g1", 2.1)
    state.on_frame(Done(request_id="r1", attempt=1, seq=4, usage=Usage()), "g1", 2.2)
    assert state.answer.resumed == ""


def test_an_answer_that_only_guests_could_go_on_with_ends_at_once() -> None:
    state = running()
    state.on_group_down("g0", "i0", "silent", 2.0)
    assert state.on_frame(failed("unavailable", 1, reason="guest_cannot"), "", 2.1) == ()
    assert isinstance(state.error, Unavailable)
    assert state.error.data["reason"] == "guest_cannot"


def test_a_leaders_refusal_of_a_new_request_ends_it() -> None:
    state = running()
    state.on_frame(failed("invalid_request", 0, 3, reason="guest_cannot"), "g0", 2.0)
    assert isinstance(state.error, InvalidRequest)
