"""Checks that sequences and steps in flight agree; for tests."""

from collections.abc import Iterable, Sequence

from services.worker.domain.scheduling import sequence as sequences
from services.worker.domain.scheduling.step_draft import PlannedChunk


def check_steps(
    in_flight: Iterable[tuple[int, list[PlannedChunk]]],
    running: Sequence[sequences.Sequence],
    waiting: Sequence[sequences.Sequence],
) -> None:
    """Raises `AssertionError` when sequences count other tokens in flight than the steps have."""
    planned: dict[int, int] = {}
    pending: dict[int, int] = {}
    for _, parts in in_flight:
        for sequence, seq_id, count, samples, end in parts:
            planned[seq_id] = planned.get(seq_id, 0) + count
            new = samples > 0 and end >= len(sequence.tokens)
            pending[id(sequence)] = pending.get(id(sequence), 0) + new
    for sequence in running:
        if sequence.planned - sequence.computed != planned.get(sequence.seq_id, 0):
            raise AssertionError(f"sequence {sequence.seq_id} is in flight with other tokens than it says")
    for sequence in (*running, *waiting):
        if sequence.pending != pending.get(id(sequence), 0):
            raise AssertionError(f"request {sequence.request_id} waits for {sequence.pending} tokens")
