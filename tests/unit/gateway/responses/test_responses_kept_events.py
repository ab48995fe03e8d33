"""The events of background responses take so many bytes at most; those of ended responses go first."""

import pytest

from services.gateway.formats.responses.events import ResponseEvent
from services.gateway.resources.stored_responses.kept_events import EventRoom, EventsGone, KeptEvents


def events(first: int, count: int, size: int = 10) -> list[ResponseEvent]:
    return [ResponseEvent("response.x", number, b"." * size) for number in range(first, first + count)]


def numbers(kept: KeptEvents, after: int) -> list[int]:
    return [event.number for event in kept.above(after)]


def test_events_are_found_by_their_numbers() -> None:
    room = EventRoom(1000)
    kept = KeptEvents(room)
    kept.append(events(0, 3))
    kept.append(events(3, 2))
    assert numbers(kept, -1) == [0, 1, 2, 3, 4]
    assert numbers(kept, 2) == [3, 4]
    assert numbers(kept, 4) == []
    assert room.held == 50


def test_ended_responses_make_room_first_the_oldest_before_others() -> None:
    room = EventRoom(100)
    ended = [KeptEvents(room) for _ in range(2)]
    for kept in ended:
        kept.append(events(0, 4))
        kept.end()
    running = KeptEvents(room)
    running.append(events(0, 4))
    assert (ended[0].has(-1), ended[1].has(-1), running.has(-1)) == (False, True, True)
    with pytest.raises(EventsGone):
        ended[0].above(-1)
    assert room.held == 80


def test_a_response_that_fills_the_room_alone_keeps_its_newest_events() -> None:
    room = EventRoom(100)
    running, other = KeptEvents(room), KeptEvents(room)
    other.append(events(0, 2))
    for first in range(0, 40, 4):
        running.append(events(first, 4))
        assert numbers(running, first + 1) == [first + 2, first + 3], "a reader that keeps up loses nothing"
        assert room.held <= 100
    assert numbers(other, -1) == [0, 1]
    assert not running.has(-1)
    with pytest.raises(EventsGone):
        running.above(3)


def test_a_batch_larger_than_the_room_is_there_until_the_next() -> None:
    room = EventRoom(100)
    running = KeptEvents(room)
    running.append(events(0, 2, size=400))
    assert numbers(running, -1) == [0, 1]
    running.append(events(2, 1))
    assert (running.first, room.held) == (2, 10)


def test_what_is_forgotten_gives_its_bytes_back_once() -> None:
    room = EventRoom(100)
    kept = KeptEvents(room)
    kept.append(events(0, 3))
    kept.end()
    for _ in range(2):
        kept.forget()
    assert room.held == 0
    KeptEvents(room).append(events(0, 20))
    assert room.held == 200
