"""Clocks and recordings of the ranks of a group, for profiles: the leader's side of `trace_messages.py`.

Ranks of other hosts are pinged all the time while they compute, since their newest steps come with the
answers. Ranks of this host are pinged only for a profile.
"""

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from services.worker.orchestrator.rank_link import RankLink
from services.worker.orchestrator.tracing.life_pings import LifePings
from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame
from services.worker.rank_protocol.step_times import KINDS, PartsOfStep, StepTimes
from services.worker.rank_protocol.trace_messages import ClockQuestion, Pong, TraceOrder, TracePiece
from shared.telemetry.clock_estimate import ClockEstimate, ClockOffset, RoundTrip

PING_S = 0.2  # between two pings of a rank of another host
PINGS = 16  # of each rank, for a profile
MAX_PINGS = 64  # where the machine is too busy for a good one among them
_GOOD_NS = 20_000
_MOST_MISSED = 4  # a rank whose kernel grants no lifeline answers none
_PIECE_WAIT_S = 15.0  # a long step delays the answer of a rank
_STEP_NUMBERS = 4 + len(KINDS)


class TracedRank(NamedTuple):
    """What a profile gets of one rank.

    Attributes:
        host: Its host; empty: the leader's.
        clock: Of pings; None: it answered none.
        trace: Its recording, encoded; empty: there is none.
        problem: Why there is none.
    """

    rank: int
    host: str
    pid: int
    clock: ClockOffset | None
    trace: bytes
    problem: str = ""


class _RankEnded(Exception):
    """The engine was stopped while a rank was asked."""


class RankTracing:
    """Sends orders to the ranks of the present start of an engine, and collects their answers."""

    def __init__(self) -> None:
        self._links: list[RankLink] = []
        self._times: StepTimes | None = None
        self._clocks: dict[int, ClockEstimate] = {}
        self._own: dict[int, LifePings] = {}  # of ranks of this host
        self._sent: dict[tuple[int, int], int] = {}  # when a ping of a rank was sent
        self._pings = 0
        self._waiting: dict[int, asyncio.Future[TracePiece]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._seen = -1  # steps of the first rank at the last reading

    def attach(self, links: Sequence[RankLink], times: StepTimes | None) -> None:
        """Takes the ranks of a start, once they are ready."""
        self._links, self._times = list(links), times
        self._clocks = {link.rank.rank: ClockEstimate() for link in links}
        self._own = {
            link.rank.rank: LifePings(link.rank.life_sock)
            for link in links
            if not link.rank.host and link.rank.life_sock is not None
        }
        if any(link.rank.host for link in links):
            self._ping_remote()

    def detach(self) -> None:
        """Forgets the ranks; a call that waits for one of them gets nothing."""
        self._links, self._times, self._own = [], None, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_RankEnded())

    def on_frame(self, rank: int, kind: FrameKind, body: bytes) -> None:
        """Takes an answer of a rank."""
        if kind is FrameKind.PONG:
            self._take_pong(rank, msgspec.msgpack.decode(body, type=Pong))
        elif (waiting := self._waiting.pop(rank, None)) is not None and not waiting.done():
            waiting.set_result(msgspec.msgpack.decode(body, type=TracePiece))

    def begin(self, seconds: float, max_spans: int) -> None:
        """Has all ranks record."""
        order = TraceOrder(action="begin", seconds=seconds, max_spans=max_spans)
        self._send_all(order)

    async def ping_all(self) -> None:
        """Measures the clocks of all ranks."""
        missed: dict[int, int] = {}  # pings in all, by rank
        for count in range(MAX_PINGS):
            if count >= PINGS and self._are_good():
                return
            for link in list(self._links):
                rank = link.rank.rank
                if link.rank.host:
                    if count < PINGS:
                        self._ping(link)
                elif (own := self._own.get(rank)) is not None:
                    if missed.get(rank, 0) < _MOST_MISSED:  # each miss holds up the loop
                        trips, in_time = own.ping()
                        missed[rank] = missed.get(rank, 0) + (not in_time)
                    else:
                        trips = own.take_late()
                    self._add_trips(rank, trips)
            await asyncio.sleep(0.001)

    def _add_trips(self, rank: int, trips: list[RoundTrip]) -> None:
        for trip in trips:
            self._clocks[rank].add(trip)

    def _are_good(self) -> bool:
        """Whether the clocks of this host's ranks are known well; others are too far away for that."""
        now_ns = time.monotonic_ns()
        own = [self._clocks[link.rank.rank].offset(now_ns) for link in self._links if not link.rank.host]
        return all(clock is not None and clock.error_ns <= _GOOD_NS for clock in own)

    async def collect(self) -> list[TracedRank]:
        """Ends the recording, and returns what the ranks have; those that are gone meanwhile are missing."""
        found = await asyncio.gather(*(self._collect(link) for link in self._links))
        self._send_all(TraceOrder(action="drop"))
        return found

    async def _collect(self, link: RankLink) -> TracedRank:
        rank, host, pid, pieces, problem = link.rank.rank, link.rank.host, link.rank.pid, bytearray(), ""
        try:
            order = TraceOrder(action="end")
            while True:
                piece = await self._ask(link, order)
                pieces += piece.data
                if not piece.data or len(pieces) >= piece.size:
                    break
                order = TraceOrder(action="read", offset=len(pieces))
        except TimeoutError:
            problem = f"rank {rank} did not answer within {_PIECE_WAIT_S:g} s"
        except _RankEnded:
            problem = f"rank {rank} ended during the profile"
        if (own := self._own.get(rank)) is not None:
            self._add_trips(rank, own.take_late())
        clock = self._clocks[rank].offset(time.monotonic_ns())
        return TracedRank(rank, host, pid, clock, b"" if problem else bytes(pieces), problem)

    async def _ask(self, link: RankLink, order: TraceOrder) -> TracePiece:
        if link not in self._links:
            raise _RankEnded
        future: asyncio.Future[TracePiece] = asyncio.get_running_loop().create_future()
        self._waiting[link.rank.rank] = future
        link.send_frame(pack_frame(FrameKind.TRACE, order))
        async with asyncio.timeout(_PIECE_WAIT_S):
            return await future

    def _send_all(self, order: TraceOrder) -> None:
        frame = pack_frame(FrameKind.TRACE, order)
        for link in self._links:
            link.send_frame(frame)

    def _ping_remote(self) -> None:
        """Pings the ranks of other hosts, again and again, while they compute."""
        steps = self._times.read_totals(0).steps if self._times is not None else 0
        if steps != self._seen:
            self._seen = steps
            for link in self._links:
                if link.rank.host:
                    self._ping(link)
        self._timer = asyncio.get_running_loop().call_later(PING_S, self._ping_remote)

    def _ping(self, link: RankLink) -> None:
        self._pings += 1
        key = link.rank.rank, self._pings
        self._sent = {one: at for one, at in self._sent.items() if one[1] > self._pings - 256}
        self._sent[key] = time.monotonic_ns()
        link.send_frame(pack_frame(FrameKind.PING, ClockQuestion(self._pings)))

    def _take_pong(self, rank: int, pong: Pong) -> None:
        heard_ns, sent_ns = time.monotonic_ns(), self._sent.pop((rank, pong.ping_id), None)
        clock = self._clocks.get(rank)
        if clock is None or sent_ns is None:
            return
        clock.add(RoundTrip(sent_ns, pong.received_ns, pong.answered_ns, heard_ns))
        found = clock.offset(heard_ns)
        if found is None or self._times is None:
            return
        self._times.clock_errors_ns[rank] = found.error_ns
        writer, numbers = self._times.writer(rank), array("q", pong.steps)
        for first in range(0, len(numbers) - _STEP_NUMBERS + 1, _STEP_NUMBERS):
            step_id, begin_ns, end_ns, *parts, idle_ns = numbers[first : first + _STEP_NUMBERS]
            own_ns = found.offset_ns
            writer.write_step(step_id, begin_ns - own_ns, end_ns - own_ns, PartsOfStep(*parts), idle_ns)
        writer.write_totals(pong.totals)
