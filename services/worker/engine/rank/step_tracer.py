"""Answers the leader's frames about times: records a profile of this rank, and reads its clock.

While no profile is recorded a step costs one test. Frames are handled by the thread of the steps, between
them or while a step waits for masks.
"""

import socket
import time
from array import array
from collections.abc import Callable

import msgspec

from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.op_spans import OpSpans
from services.worker.engine.rank.runner import StepMoments
from services.worker.engine.rank.step_inbox import LeaderSocket
from services.worker.rank_protocol.kv_messages import FetchResult, StoreResult
from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame
from services.worker.rank_protocol.trace_messages import (
    MAX_MOVES,
    MAX_SPANS,
    MAX_STEPS,
    PIECE_BYTES,
    BlockMove,
    ClockQuestion,
    Pong,
    RankTrace,
    TraceOrder,
    TracePiece,
)
from shared.kv_hash import NAME_BYTES

OVERTIME_S = 10.0  # after its time a recording ends that the leader has not ended
NewSteps = Callable[[], tuple[bytes, list[int]]]  # see `Pong`


class StepTracer:
    """Records the steps of one rank while the leader wants to know.

    Args:
        sock: To the leader.

    Attributes:
        is_on: Whether a profile is recorded.
    """

    def __init__(self, sock: socket.socket | LeaderSocket, threads: int) -> None:
        self.is_on = False
        self._sock = sock
        self._threads = max(1, threads)
        self._compute: Compute | None = None
        self._new_steps: NewSteps = lambda: (b"", [])
        self._spans = OpSpans(1, 0)
        self._phases = array("q")
        self._moves: list[BlockMove] = []
        self._ends_ns = 0
        self._recorded = b""

    def attach(self, compute: Compute, new_steps: NewSteps) -> None:
        """Gives the forward pass whose ops are recorded, and the source of new steps for `Pong`."""
        self._compute, self._new_steps = compute, new_steps

    def on_frame(self, kind: FrameKind, body: bytes) -> None:
        """Handles a frame; others than those of `trace_messages.py` are ignored."""
        received_ns = time.monotonic_ns()
        if kind is FrameKind.PING:
            ping = msgspec.msgpack.decode(body, type=ClockQuestion)
            steps, totals = self._new_steps()
            pong = Pong(
                ping_id=ping.ping_id,
                received_ns=received_ns,
                answered_ns=time.monotonic_ns(),
                steps=steps,
                totals=totals,
            )
            self._sock.sendall(pack_frame(FrameKind.PONG, pong))
        elif kind is FrameKind.TRACE:
            self._obey(msgspec.msgpack.decode(body, type=TraceOrder))

    def add_step(self, step_id: int, began_ns: int, copied_ns: int, moments: StepMoments) -> None:
        """Records the phases of a step; call it only while `is_on`."""
        if time.monotonic_ns() > self._ends_ns:
            self._stop()
            return
        if len(self._phases) < 7 * MAX_STEPS:
            later = (int(moment * 1e9) for moment in moments[1:])
            self._phases.extend((step_id, began_ns, copied_ns, *later))

    def note_report(self, kind: FrameKind, message: msgspec.Struct) -> None:
        """Records what the threads beside the steps did with KV blocks; called by them."""
        if not self.is_on or len(self._moves) >= MAX_MOVES:
            return
        now_ns = time.monotonic_ns()
        if isinstance(message, FetchResult):
            self._moves.append(BlockMove("fetch", now_ns, int(message.seconds * 1e9), message.count))
        elif isinstance(message, StoreResult):
            blocks = len(message.names) // NAME_BYTES
            self._moves.append(BlockMove("store", now_ns, int(message.seconds * 1e9), blocks))

    def _obey(self, order: TraceOrder) -> None:
        if order.action == "begin":
            self._begin(order)
        elif order.action == "drop":
            self._stop()
            self._recorded = b""
        else:
            if order.action == "end":
                self._stop()
                self._recorded = msgspec.msgpack.encode(self._trace())
                self._spans, self._phases, self._moves = OpSpans(1, 0), array("q"), []
            data = self._recorded[order.offset : order.offset + PIECE_BYTES]
            piece = TracePiece(size=len(self._recorded), offset=order.offset, data=data)
            self._sock.sendall(pack_frame(FrameKind.TRACED, piece))

    def _begin(self, order: TraceOrder) -> None:
        self._recorded = b""
        self._spans = OpSpans(self._threads, min(order.max_spans, MAX_SPANS) // self._threads)
        self._phases, self._moves = array("q"), []
        self._ends_ns = time.monotonic_ns() + int((order.seconds + OVERTIME_S) * 1e9)
        self.is_on = True
        if self._compute is not None:
            self._compute.spans = self._spans

    def _stop(self) -> None:
        self.is_on = False
        if self._compute is not None:
            self._compute.spans = None

    def _trace(self) -> RankTrace:
        names = [] if self._compute is None else self._compute.op_names
        return RankTrace(
            ops=[(one.name, one.kind, one.layer) for one in names],
            spans=self._spans.packed(),
            left_out=self._spans.left_out,
            phases=self._phases.tobytes(),
            moves=self._moves,
        )
