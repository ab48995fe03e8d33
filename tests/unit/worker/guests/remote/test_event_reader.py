"""Events come whole, however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.guests.remote.wire.event_reader import Event, EventReader
from services.worker.guests.remote.wire.server_error import ServerError

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


@given(
    texts=st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=6),
    ends=st.just(["\r"]) | st.lists(st.sampled_from(["\n", "\r\n"]), min_size=1, max_size=4),
    noise=st.lists(st.sampled_from([": a comment", "id: 3", "retry: 5", "unknown", ""]), max_size=6),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_any_split_gives_the_same_events(
    texts: list[list[str]], ends: list[str], noise: list[str], cuts: list[int]
) -> None:
    sent, number = b"", 0
    for index, lines in enumerate(texts):
        extra = noise[index : index + 1]
        for line in [*extra, *(f"data: {line}" for line in lines), ""]:
            sent += (line + ends[number % len(ends)]).encode()
            number += 1
    reader, events, at = EventReader(10_000), list[Event](), 0
    while at < len(sent):
        size = cuts[at % len(cuts)]
        events += reader.feed(sent[at : at + size])
        at += size
    assert [event.data.decode() for event in events + reader.end()] == ["\n".join(lines) for lines in texts]


def test_the_event_that_the_end_completes_is_given() -> None:
    reader = EventReader(100)
    assert reader.feed(b"data: one\n") == []
    assert reader.feed(b"data: tw") == []
    assert reader.end() == [Event(b"", b"one\ntw")]
    assert reader.end() == []


def test_events_have_their_names() -> None:
    reader = EventReader(100)
    given = b'event: error\ndata: {}\n\ndata: 1\n\nerror: {"code": 5}\n\n'
    assert reader.feed(given) == [
        Event(b"error", b"{}"),
        Event(b"", b"1"),
        Event(b"error", b'{"code": 5}'),
    ]


@pytest.mark.parametrize("rest", [b"x" * 60, b"xx\ndata: " * 30])
def test_an_event_has_a_bound(rest: bytes) -> None:
    reader = EventReader(64)
    reader.feed(b"data: 1234567")
    with pytest.raises(ServerError, match="more than 64 bytes"):
        reader.feed(rest)


def test_the_bound_is_of_one_event() -> None:
    reader = EventReader(64)
    events = [event for _ in range(20) for event in reader.feed(b"data: xxxxxxxxxx\n\n")]
    assert len(events) == 20
