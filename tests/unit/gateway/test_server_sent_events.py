"""Events are the same however their bytes are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.inner.server_sent_events import EventReader, ServerSentEvent

BODY = (
    b'id: 0.0\ndata: {"a": "\xc3\xa9"}\n\n: ping\n\nevent: message_stop\ndata: one\ndata: two\n\n'
    b"data:no space\n\ndata: [DONE]\n\n"
)
EVENTS = [
    ServerSentEvent("0.0", "", b'{"a": "\xc3\xa9"}'),
    ServerSentEvent("", "message_stop", b"one\ntwo"),
    ServerSentEvent("", "", b"no space"),
    ServerSentEvent("", "", b"[DONE]"),
]


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_events_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    reader, at = EventReader(), [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[begin:end] for begin, end in pairwise(at)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_an_event_that_is_not_complete_is_kept_back() -> None:
    reader = EventReader()
    assert not list(reader.feed(b"data: one\n"))
    assert list(reader.feed(b"\n")) == [ServerSentEvent("", "", b"one")]
