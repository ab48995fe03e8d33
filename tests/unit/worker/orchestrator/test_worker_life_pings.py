"""Pings of a rank's clock on its life socket."""

import socket
import time
from collections.abc import Iterator

import pytest

from services.worker.orchestrator.tracing.life_pings import LifePings
from services.worker.rank_protocol.trace_messages import LIFE_PONG
from shared.telemetry.clock_estimate import ClockEstimate

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The leader's end and the rank's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_an_answer_gives_a_round_trip(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send(LIFE_PONG.pack(9, 1, 2))  # of a ping that was never sent
    theirs.send(LIFE_PONG.pack(0, 30, 40))
    before = time.monotonic_ns()
    (trip,), in_time = LifePings(ours).ping()
    assert in_time
    assert trip[1:3] == (30, 40)
    assert before <= trip.sent_ns <= trip.heard_ns <= time.monotonic_ns()
    assert theirs.recv(16) == b"\x00"


def test_a_rank_that_does_not_answer_is_waited_for_only_shortly(ends: Ends) -> None:
    ours, theirs = ends
    pings, before = LifePings(ours), time.monotonic()
    assert pings.ping() == ([], False)
    assert time.monotonic() - before < 20
    theirs.close()
    assert pings.ping() == ([], False)
    assert pings.take_late() == []


def test_answers_that_come_late_tell_the_clock_all_the_same(ends: Ends) -> None:
    """A rank without a free core answers none of its pings in time."""
    ours, theirs = ends
    pings, clock = LifePings(ours), ClockEstimate()
    for _ in range(2):
        assert pings.ping() == ([], False)
    received_ns = time.monotonic_ns()
    for number in theirs.recv(16):
        theirs.send(LIFE_PONG.pack(number, received_ns, received_ns))
    trips = pings.take_late()
    assert len(trips) == 2
    for trip in trips:
        assert trip.sent_ns < received_ns < trip.heard_ns
        clock.add(trip)
    found = clock.offset(time.monotonic_ns())
    assert found is not None
    assert abs(found.offset_ns) <= found.error_ns
    assert pings.take_late() == []


def test_a_late_answer_comes_with_the_next_ping(ends: Ends) -> None:
    ours, theirs = ends
    pings = LifePings(ours)
    assert pings.ping() == ([], False)
    theirs.send(LIFE_PONG.pack(0, 1, 2) + LIFE_PONG.pack(1, 3, 4))
    trips, in_time = pings.ping()
    assert in_time
    assert [trip.received_ns for trip in trips] == [1, 3]
