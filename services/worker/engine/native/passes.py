"""Cuts the chunks of a step into passes of the kernels."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from services.worker.engine.native.operands import MAX_ROWS
from services.worker.engine.rank.sequences import SequenceState
from services.worker.rank_protocol.plan import ScheduledChunk

# sequence, first position, tokens, how many of the last ones are sampled
PassChunk = tuple[SequenceState, int, int, int]


class PromptRows(NamedTuple):
    """Rows of a pass that a prompt wants: positions of a sequence, from sampled row `begin` on."""

    state: SequenceState
    positions: range
    begin: int


def passes(scheduled: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Iterator[list[PassChunk]]:
    """Cuts the chunks of a step, in their order, into passes of at most MAX_ROWS tokens."""
    chunks: list[PassChunk] = []
    room = MAX_ROWS
    for part, state in zip(scheduled, states, strict=True):
        start, left = part.start, part.num_tokens
        while left:
            count = min(left, room)
            left -= count
            sampled = min(count, max(0, 1 + part.drafts - left)) if state.samples(part) else 0
            chunks.append((state, start, count, sampled))
            start, room = start + count, room - count
            if not room:
                yield chunks
                chunks, room = [], MAX_ROWS
    if chunks:
        yield chunks
