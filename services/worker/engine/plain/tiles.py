"""A step cut into tiles of rows, so that a token's result does not depend on what else is in the step.

The order in which an operator adds up depends on the shapes of its operands. Here every operator but
attention has the same number of rows in any step, and attention is computed token by token, in shapes that
follow from the token's position. Tiles are computed one after the other: a token finds its predecessors in
the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.plain.batch import AttentionMetadata, DecodeGroup, PlainBatch, ReadRange
from services.worker.engine.plain.batch_builder import decode_group, table_of
from services.worker.engine.plain.tile_rows import TILE_ROWS, padded_rows
from services.worker.engine.rank.sequences import SequenceState
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk
from services.worker.rank_protocol.sliding_pool import PoolSizes


@dataclass(frozen=True, slots=True)
class TiledStep:
    """A step.

    Attributes:
        tiles: To be computed in this order; the rows of all are counted through below.
        sample_rows: Rows whose logits are computed, in the order of the plan's sampling chunks.
        prompt_rows: Rows that prompts want, in the order of the chunks.
    """

    tiles: list[PlainBatch]
    sample_rows: Tensor
    prompt_rows: Tensor


def make_tiles(
    chunks: Sequence[ScheduledChunk],
    states: Sequence[SequenceState],
    read_range: ReadRange,
    sizes: PoolSizes,
) -> TiledStep:
    """Cuts a step, whose states include its chunks already.

    Rows that pad a tile use the spare block, which follows the others of its pool.
    """
    rows: list[tuple[SequenceState, int]] = []
    samples: list[int] = []
    prompts: list[int] = []
    for part, state in zip(chunks, states, strict=True):
        shift = len(rows) - part.start
        rows += [(state, part.start + index) for index in range(part.num_tokens)]
        if state.samples(part):
            samples += range(len(rows) - 1 - part.drafts, len(rows))
        if state.wants_rows:
            prompts += [shift + at for at in state.prompt_rows(part.start, part.num_tokens)]
    return TiledStep(
        tiles=[
            _tile(rows[begin : begin + TILE_ROWS], read_range, sizes)
            for begin in range(0, len(rows), TILE_ROWS)
        ],
        sample_rows=torch.tensor(samples, dtype=torch.int64),
        prompt_rows=torch.tensor(prompts, dtype=torch.int64),
    )


def in_tiles(compute: Callable[[Tensor, slice], Tensor | None], rows: Tensor) -> Tensor | None:
    """What a function of each row makes of rows [rows, ...], a tile at a time; None if it makes nothing.

    Args:
        compute: Gets a tile, and which of the rows are in it.
    """
    padded = padded_rows(rows)
    tiles = [slice(begin, begin + TILE_ROWS) for begin in range(0, len(padded), TILE_ROWS)]
    parts = [compute(padded[tile], tile) for tile in tiles]
    made = [part for part in parts if part is not None]
    return torch.cat(made)[: len(rows)] if made else None


def _tile(rows: Sequence[tuple[SequenceState, int]], read_range: ReadRange, sizes: PoolSizes) -> PlainBatch:
    token_ids, positions = np.zeros((2, TILE_ROWS), np.int64)
    adapters = np.full(TILE_ROWS, NO_ADAPTER, np.int64)
    slots, sliding_slots = (np.full(TILE_ROWS, spare * BLOCK_SIZE, np.int64) for spare in sizes)
    sliding = sizes.num_sliding > 0
    for row, (state, at) in enumerate(rows):
        token_ids[row], positions[row], adapters[row] = state.tokens.view[at], at, state.adapter
        slots[row] = state.table.view[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        if sliding:
            sliding_slots[row] = state.sliding.view[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
    return PlainBatch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        sample_rows=torch.zeros(0, dtype=torch.int64),
        attention_metadata={
            window: AttentionMetadata(
                [
                    decode_group(
                        row,
                        positions[row : row + 1],
                        [table_of(state, window, sliding)],
                        window,
                        read_range.pages_of(window),
                    )
                    for row, (state, _) in enumerate(rows)
                ]
                + _padding(len(rows), sizes.num_sliding if sliding and window else sizes.num_blocks),
                [],
            )
            for window in read_range.windows
        },
        sliding_slots=torch.from_numpy(sliding_slots) if sliding else None,
        adapters=adapters,
    )


def _padding(begin: int, spare_block: int) -> list[DecodeGroup]:
    """Rows that are computed and not used, each with one key."""
    count = TILE_ROWS - begin
    if not count:
        return []
    blocks, newest = torch.full((count,), spare_block), torch.zeros(count, dtype=torch.int64)
    return [DecodeGroup(begin, TILE_ROWS, 1, blocks, None, newest, window=0)]
