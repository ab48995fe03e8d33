"""Pings of a rank's clock on its life socket."""

import socket
import time
from collections.abc import Iterator

import pytest

from services.worker.orchestrator.tracing.rank_tracing import ping_life
from services.worker.rank_protocol.trace_messages import LIFE_PONG

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
    theirs.send(LIFE_PONG.pack(6, 1, 2))  # of an earlier ping, which came too late
    theirs.send(LIFE_PONG.pack(7, 30, 40))
    before = time.monotonic_ns()
    trip = ping_life(ours, 7)
    assert trip is not None
    assert trip[1:3] == (30, 40)
    assert before <= trip.sent_ns <= trip.heard_ns <= time.monotonic_ns()
    assert theirs.recv(16) == b"\x07"


def test_a_rank_that_does_not_answer_is_waited_for_only_shortly(ends: Ends) -> None:
    ours, theirs = ends
    before = time.monotonic()
    assert ping_life(ours, 1) is None
    assert time.monotonic() - before < 20
    theirs.close()
    assert ping_life(ours, 2) is None
