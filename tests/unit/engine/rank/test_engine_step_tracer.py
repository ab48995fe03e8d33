"""What a rank records for a profile: ops of both ways to compute, phases, moved blocks, all within bounds."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.rank.runner import Runner, StepMoments
from services.worker.engine.rank.step_tracer import StepTracer
from services.worker.rank_protocol import trace_messages
from services.worker.rank_protocol.kv_messages import FetchResult, StoreResult
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader
from services.worker.rank_protocol.trace_messages import (
    ClockQuestion,
    Pong,
    RankTrace,
    TraceOrder,
    TracePiece,
)
from tests.kits.engine.rank_threads import (
    Blocks,
    ComputeFactory,
    native_ranks,
    new_sequence,
    plain_compute,
)

MOMENTS = StepMoments(1e-6, 2e-6, 3e-6, 4e-6, 5e-6)


class Leader:
    """The other end of a tracer's socket."""

    def __init__(self, threads: int = 1) -> None:
        self.sock, theirs = socket.socketpair()
        self.tracer = StepTracer(theirs, threads)
        self._theirs = theirs
        self._frames = FrameReader()

    def order(self, **fields: object) -> None:
        self.tracer.on_frame(FrameKind.TRACE, msgspec.msgpack.encode(TraceOrder(**fields)))  # type: ignore[arg-type]

    def answer(self) -> bytes:
        while True:
            for _, body in self._frames.feed(self.sock.recv(2**20)):
                return body

    def piece(self, **fields: object) -> TracePiece:
        self.order(**fields)
        return msgspec.msgpack.decode(self.answer(), type=TracePiece)

    def recorded(self) -> RankTrace:
        piece = self.piece(action="end")
        data = piece.data
        while len(data) < piece.size:
            data += self.piece(action="read", offset=len(data)).data
        return msgspec.msgpack.decode(data, type=RankTrace)

    def close(self) -> None:
        self.sock.close()
        self._theirs.close()


@pytest.fixture
def leader() -> Iterator[Leader]:
    one = Leader(threads=2)
    yield one
    one.close()


def compute_steps(directory: Path, make: ComputeFactory, leader: Leader, capacity: int) -> RankTrace:
    """Records two steps of three that are computed: a prompt of 20 tokens each."""
    with open_checkpoint(directory) as checkpoint:
        runner = Runner(make(checkpoint, read_config(directory), SingleRank(), 64))
    leader.tracer.attach(runner.compute, lambda: (b"", []))
    blocks, prompt = Blocks(64), [*range(3, 23)]
    for step_id in range(1, 4):
        if step_id == 2:
            leader.order(action="begin", seconds=5.0, max_spans=capacity)
        plan = StepPlan(
            step_id=step_id, admit=[new_sequence(step_id, prompt)], chunks=[blocks.chunk(step_id, 0, prompt)]
        )
        runner.run_step(plan)
        if leader.tracer.is_on:
            leader.tracer.add_step(step_id, 0, 0, runner.moments)
    trace = leader.recorded()
    assert runner.compute.spans is None
    return trace


def test_ops_of_compiled_programs_are_recorded_for_each_thread(model: Path, leader: Leader) -> None:
    trace = compute_steps(model, native_ranks(threads=2), leader, 10_000)
    spans = np.frombuffer(trace.spans, np.int64).reshape(-1, 4)
    one_thread = 2 * (len(trace.ops) - 1)  # nothing is gathered by one rank
    for thread in (0, 1):
        own = spans[spans[:, 0] == thread]
        assert len(own) == one_thread
        assert (own[1:, 1] >= own[:-1, 2]).all()  # one after another
        assert own[:, 3].tolist() == [*range(len(trace.ops) - 1)] * 2  # in the order of the program
    assert {kind for _, kind, _ in trace.ops} == {"linears", "attention", "rows", "collectives"}
    layers = [layer for _, _, layer in trace.ops]
    inside = [layer for layer in layers if layer >= 0]
    assert inside == sorted(inside)
    assert set(inside) == {0, 1, 2}
    assert (layers[0], layers[-2]) == (-1, -1)  # the embedding and the head
    phases = np.frombuffer(trace.phases, np.int64).reshape(-1, 7)
    assert phases[:, 0].tolist() == [2, 3]
    forward = phases[:, 3]
    assert (spans[spans[:, 3] == 0][:, 1] <= forward.max()).all()


def test_layers_of_the_plain_path_are_recorded(model: Path, leader: Leader) -> None:
    trace = compute_steps(model, plain_compute, leader, 10_000)
    spans = np.frombuffer(trace.spans, np.int64).reshape(-1, 4)
    assert trace.ops == [("layer", "layer", layer) for layer in range(3)]
    assert spans[:, 3].tolist() == [0, 1, 2] * 2


def test_a_recording_has_bounds_and_ends_by_itself(
    model: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = compute_steps(model, native_ranks(threads=2), leader, 10)
    assert len(trace.spans) == 10 * 32
    assert trace.left_out == 2 * 2 * (len(trace.ops) - 1) - 10
    monkeypatch.setattr("services.worker.engine.rank.step_tracer.MAX_STEPS", 2)
    monkeypatch.setattr("services.worker.engine.rank.step_tracer.MAX_MOVES", 2)
    leader.order(action="begin", seconds=0.0, max_spans=10)
    for step_id in range(4):
        leader.tracer.add_step(step_id, 0, 0, MOMENTS)
    leader.tracer.note_report(FrameKind.FETCHED, FetchResult(fetch_id=1, count=3, seconds=0.5))
    leader.tracer.note_report(FrameKind.STORED, StoreResult(names=bytes(32), seconds=0.25))
    leader.tracer.note_report(FrameKind.STORED, StoreResult(names=bytes(32)))
    monkeypatch.setattr("services.worker.engine.rank.step_tracer.OVERTIME_S", -1.0)
    recorded = leader.recorded()
    assert len(recorded.phases) == 2 * 7 * 8
    assert [(one[0], one[2], one[3]) for one in recorded.moves] == [
        ("fetch", 500_000_000, 3), ("store", 250_000_000, 2),
    ]  # fmt: skip
    leader.order(action="begin", seconds=0.0, max_spans=10)
    leader.tracer.add_step(9, 0, 0, MOMENTS)  # its time is over, and the leader has not said so
    assert not leader.tracer.is_on


def test_a_recording_is_read_in_pieces_and_dropped(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.engine.rank.step_tracer.PIECE_BYTES", 16)
    assert trace_messages.PIECE_BYTES > 16
    leader.order(action="begin", seconds=5.0, max_spans=10)
    leader.tracer.add_step(1, 2, 3, MOMENTS)
    recorded = leader.recorded()
    assert np.frombuffer(recorded.phases, np.int64).tolist() == [1, 2, 3, 2000, 3000, 4000, 5000]
    assert leader.piece(action="read", offset=0).size > 0
    leader.order(action="drop")
    assert leader.piece(action="read", offset=0) == TracePiece(size=0, offset=0, data=b"")


def test_a_ping_is_answered_with_the_clock_and_the_new_steps(leader: Leader) -> None:
    class NoCompute:
        spans = None
        op_names = ()

    leader.tracer.attach(NoCompute(), lambda: (b"steps", [1, 2]))  # type: ignore[arg-type]
    leader.tracer.on_frame(FrameKind.PING, msgspec.msgpack.encode(ClockQuestion(7)))
    pong = msgspec.msgpack.decode(leader.answer(), type=Pong)
    assert (pong.ping_id, pong.steps, pong.totals) == (7, b"steps", [1, 2])
    assert 0 < pong.received_ns <= pong.answered_ns
