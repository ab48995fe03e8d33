"""Stop strings, session history, and the frames of a request."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.answers.stop_strings import StopMatcher, StopStrings
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.domain.generation.turn_context import (
    TurnAnswer,
    TurnContext,
    appends,
    conversation,
    next_record,
)
from shared import codec
from shared.messages import (
    Accepted,
    ChatMessage,
    Delta,
    Done,
    GenerateRequest,
    SessionRecord,
    SessionRef,
    Tokens,
    Usage,
)
from shared.messages.base import MAX_ATTEMPT
from tests.kits.worker.leader import chat


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher, out = StopMatcher(StopStrings(stops)), ""
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        out += text
        if stopped:
            return out, True
    return out + matcher.flush(), False


def test_a_stop_string_is_never_shown() -> None:
    assert shown(["END"], ["a E", "N", "D b"]) == ("a ", True)
    assert shown(["END"], ["a E", "N", "d"]) == ("a ENd", False)
    assert shown(["aab"], ["a", "a", "a", "b"]) == ("a", True)
    assert shown(["abcd", "bc"], ["abcd"]) == shown(["abcd", "bc"], ["ab", "cd"]) == ("a", True)


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_the_cut_does_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    whole, stopped = shown(stops, list(text))
    assert shown(stops, pieces) == (whole, stopped)
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in whole for stop in stops)
    assert text.startswith(whole)


class SlowMatcher:
    """The reference: searches all held text for each stop string."""

    def __init__(self, stops: list[str]) -> None:
        self._stops, self._held = stops, ""

    def feed(self, text: str) -> tuple[str, bool]:
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            return text[: min(found)[1]], True
        endings = (at for at in range(len(text)) if any(s.startswith(text[at:]) for s in self._stops))
        at = next(endings, len(text))
        self._held = text[at:]
        return text[:at], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


@given(
    st.lists(st.text("abé中", max_size=9), max_size=12),
    st.lists(st.text("abé中", min_size=1, max_size=7), min_size=1, max_size=5),
)
def test_each_piece_is_matched_as_by_the_slow_matcher(pieces: list[str], stops: list[str]) -> None:
    matcher, slow = StopMatcher(StopStrings(stops)), SlowMatcher(stops)
    for piece in pieces:
        found = matcher.feed(piece)
        assert found == slow.feed(piece)
        if found[1]:
            return
    assert matcher.flush() == slow.flush()


def test_stop_strings_of_more_characters_than_are_remembered_are_matched() -> None:
    chars = [chr(0x4E00 + number) for number in range(1000)]
    stops = ["".join(chars[at : at + 250]) for at in (0, 250, 500)] + ["".join(chars[700:950]), chars[999]]
    pieces = [*chars[100:250], *chars[:249], *chars[690:960], *chars]
    matcher, slow = StopMatcher(StopStrings(stops)), SlowMatcher(stops)
    for piece in pieces:
        found = matcher.feed(piece)
        assert found == slow.feed(piece)
        if found[1]:
            return
    raise AssertionError("no stop string was found")


def message(role: str, content: str) -> ChatMessage:
    return codec.convert({"role": role, "content": content}, ChatMessage)


def record(*messages: ChatMessage) -> SessionRecord:
    return SessionRecord(
        session_id="s", tenant="t", model="m", version=4, turns=2, messages=list(messages), created_ms=5
    )


def test_history_is_put_before_the_new_messages_unless_they_bring_their_own() -> None:
    session = SessionRef(session_id="s")
    stored = record(message("system", "old"), message("user", "1"), message("assistant", "2"))
    new = [message("user", "3")]
    assert [m.content for m in conversation(new, session, stored)] == ["old", "1", "2", "3"]
    assert conversation(new, session, None) == new
    with_system = [message("system", "new"), *new]
    assert [m.content for m in conversation(with_system, session, stored)] == ["new", "1", "2", "3"]
    without = record(message("user", "1"), message("assistant", "2"))
    assert [m.content for m in conversation(with_system, session, without)] == ["new", "1", "2", "3"]
    full = [message("user", "x"), message("assistant", "y"), message("user", "z")]
    assert conversation(full, session, stored) == full
    assert appends(full, SessionRef(session_id="s", mode="append"))
    assert not appends(new, SessionRef(session_id="s", mode="replace"))


def test_a_turn_makes_the_next_version() -> None:
    session, asked = SessionRef(session_id="s"), [message("user", "q")]
    request, answer = (
        chat("r", messages=asked, tenant="t"),
        TurnAnswer(ChatMessage(role="assistant", content="a"), b""),
    )
    first = next_record(TurnContext(session, asked), request, answer, model="m", group="g1", now_ms=9)
    assert (first.version, first.turns, first.created_ms) == (1, 1, 9)
    turn = TurnContext(session, asked, record())
    second = next_record(turn, request, answer, model="m", group="g1", now_ms=9)
    assert (second.version, second.turns, second.created_ms, second.updated_ms) == (5, 3, 5, 9)
    assert second.messages[-1] == message("assistant", "a")
    assert second.last_group == "g1"


def tokens(seq: int, text: str = "x", name: str = "r") -> Tokens:
    return Tokens(request_id=name, seq=seq, deltas=[Delta(text=text, token_ids=b"1234")])


def filled(name: str, outbox: RetransmitBuffer, count: int, text: str = "x") -> None:
    outbox.open_attempt(name, 0)
    outbox.add_frame(name, Accepted(request_id=name, group="g"), 0.0)
    for seq in range(1, count):
        outbox.add_frame(name, tokens(seq, text, name), 0.0)


def test_missed_frames_come_again_while_they_are_kept() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=10_000)
    filled("r", outbox, 4)
    assert [frame.seq for frame in outbox.frames_from("r", 0, 2).frames] == [2, 3]
    assert outbox.frames_from("r", 0, 9) == outbox.frames_from("r", 0, 4)
    assert not outbox.frames_from("r", 1, 0).known
    assert not outbox.frames_from("other", 0, 0).known
    outbox.add_frame("r", Done(request_id="r", seq=4, usage=Usage()), 5.0)
    outbox.forget_expired(14.9)
    assert outbox.frames_from("r", 0, 4).next_seq == 5
    outbox.forget_expired(15.0)
    assert outbox.attempt("r") is None
    assert outbox.num_bytes == 0


def test_a_newer_attempt_replaces_the_older() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=10_000)
    filled("r", outbox, 3)
    outbox.open_attempt("r", 1, first_seq=3)
    assert not outbox.frames_from("r", 0, 0).known
    assert outbox.frames_from("r", 1, 3).known
    assert not outbox.frames_from("r", 1, 2).known


def test_bytes_are_bounded_ended_requests_go_first() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=8_000)
    filled("ended", outbox, 3)
    outbox.add_frame("ended", Done(request_id="ended", seq=3, usage=Usage()), 0.0)
    filled("running", outbox, 4)
    for seq in range(4, 60):
        outbox.add_frame("running", tokens(seq, "y" * 50, "running"), 0.0)
        assert outbox.num_bytes <= 8_000
    assert outbox.attempt("ended") is None
    assert not outbox.frames_from("running", 0, 0).known
    assert outbox.frames_from("running", 0, 59).frames[0].seq == 59


def test_a_reply_is_no_larger_than_it_may_be() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=1_000_000)
    filled("r", outbox, 50)
    reply = outbox.frames_from("r", 0, 0, max_bytes=2_000)
    assert reply.next_seq == 50
    assert 1 < len(reply.frames) < 49
    assert len(codec.encode(reply)) <= 2_000


def test_a_reply_is_no_larger_for_having_changed_hands() -> None:
    outbox = RetransmitBuffer(retention_s=10, max_bytes=1_000_000)
    asked = GenerateRequest(request_id="r", model="m", prompt="p", note=b"n")
    outbox.open_attempt("r", 0, 0, asked)
    for seq in range(50):
        outbox.add_frame("r", Tokens(request_id="r", seq=seq, deltas=[]), 0.0)
    outbox.give_to_reader("r", msgspec.structs.replace(asked, attempt=MAX_ATTEMPT), "reader", 0.0)
    reply = outbox.frames_from("r", MAX_ATTEMPT, 0, max_bytes=2_000)
    assert {frame.attempt for frame in reply.frames} == {MAX_ATTEMPT}
    assert 1 < len(reply.frames) < 49
    assert len(codec.encode(reply)) <= 2_000
