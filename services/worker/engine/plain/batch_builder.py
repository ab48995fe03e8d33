"""Makes the index tensors of a forward pass from the scheduled chunks of a plan.

Chunks of one token (decodes) come first, by length; those of about one length are attended together, padded
to the longest of them. Longer ones (prefill chunks) are attended one by one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.plain.batch import (
    AttentionMetadata,
    DecodeGroup,
    PlainBatch,
    PrefillChunk,
    ReadRange,
)
from services.worker.engine.rank.sequences import Ints, SequenceState
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk

PADDING = 256  # tokens by which a sequence may be padded, however short it is
EVERYTHING = ReadRange()


def make_batch(
    chunks: Sequence[ScheduledChunk],
    states: Sequence[SequenceState],
    read_range: ReadRange = EVERYTHING,
    *,
    sliding: bool = False,
) -> PlainBatch:
    """Makes the batch of these chunks, whose states include them already.

    With `sliding` the layers that have a window use a pool of blocks of their own.
    """
    # decodes by length, then the others as they come
    order = sorted(
        range(len(chunks)),
        key=lambda i: (True, 0) if chunks[i].num_tokens > 1 else (False, chunks[i].start),
    )
    count = sum(1 for part in chunks if part.num_tokens == 1)
    token_ids: list[int] = []
    positions: list[int] = []
    sizes: list[int] = []
    last_row = [0] * len(chunks)
    for i in order:
        start, size = chunks[i].start, chunks[i].num_tokens
        token_ids += states[i].tokens.view[start : start + size].tolist()  # of a `follow` chunk, too
        positions += range(start, start + size)
        sizes.append(size)
        last_row[i] = len(token_ids) - 1
    prompt_rows: list[int] = []
    for part, state, last in zip(chunks, states, last_row, strict=True):
        if state.wants_rows:
            shift = last - (part.start + part.num_tokens - 1)
            prompt_rows += [shift + at for at in state.prompt_rows(part.start, part.num_tokens)]
    samples: list[int] = []
    for part, state, last in zip(chunks, states, last_row, strict=True):
        if state.samples(part):
            samples += range(last - part.drafts, last + 1)
    ordered = [states[i] for i in order]
    at = np.array(positions, np.int64)
    tables = {
        window: [table_of(state, window, sliding) for state in ordered] for window in {0, *read_range.windows}
    }
    windowed = tables[max(read_range.windows)] if sliding else None
    return PlainBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.from_numpy(at),
        slots=torch.from_numpy(_slots(at, sizes, tables[0])),
        sample_rows=torch.tensor(samples, dtype=torch.int64),
        attention_metadata={
            window: AttentionMetadata(
                _decodes(at[:count], tables[window][:count], window, read_range.pages_of(window)),
                _prefills(
                    [chunks[i] for i in order[count:]], tables[window][count:], count, window, read_range
                ),
            )
            for window in read_range.windows
        },
        prompt_rows=torch.tensor(prompt_rows, dtype=torch.int64) if prompt_rows else None,
        sliding_slots=None if windowed is None else torch.from_numpy(_slots(at, sizes, windowed)),
        adapters=np.repeat(np.array([state.adapter for state in ordered], np.int64), sizes),
    )


def table_of(state: SequenceState, window: int, sliding: bool) -> Ints:
    """The blocks of a sequence in layers of that window."""
    return state.sliding.view if sliding and window else state.table.view


def _slots(positions: Ints, sizes: list[int], tables: list[Ints]) -> Ints:
    blocks = positions // BLOCK_SIZE
    begin = 0
    for size, table in zip(sizes, tables, strict=True):
        end = begin + size
        blocks[begin:end] = table[blocks[begin:end]]
        begin = end
    return blocks * BLOCK_SIZE + positions % BLOCK_SIZE


def _decodes(positions: Ints, tables: list[Ints], window: int, pages: PagePolicy | None) -> list[DecodeGroup]:
    """Groups decodes, in the order of their positions, where padding costs less than another call."""
    parts, begin = [], 0
    for end in range(1, len(tables) + 1):
        if (
            end == len(tables)
            or _keys(positions[end], window) > 2 * _keys(positions[begin], window) + PADDING
        ):
            parts.append(decode_group(begin, positions[begin:end], tables[begin:end], window, pages))
            begin = end
    return parts


def decode_group(
    begin: int, positions: Ints, tables: list[Ints], window: int, pages: PagePolicy | None = None
) -> DecodeGroup:
    """Tokens at those positions of sequences with these blocks, attended together as rows from `begin` on."""
    first = np.array([_first_block(position, window) for position in positions.tolist()])
    length = int((positions + 1 - first * BLOCK_SIZE).max())
    blocks = np.zeros((len(tables), -(-length // BLOCK_SIZE)), np.int64)
    for row, table in enumerate(tables):
        used = table[first[row] : positions[row] // BLOCK_SIZE + 1]
        blocks[row, : len(used)] = used
    keys = first[:, None] * BLOCK_SIZE + np.arange(length)
    mask = _mask(positions, keys, window, pages)
    return DecodeGroup(
        begin=begin,
        end=begin + len(tables),
        length=length,
        blocks=torch.from_numpy(blocks.reshape(-1)),
        mask=None if mask is None else mask.view(len(tables), 1, 1, -1),
        newest=torch.from_numpy(positions - first * BLOCK_SIZE),
        window=window if pages is None else None,
    )


def _prefills(
    chunks: list[ScheduledChunk], tables: list[Ints], begin: int, window: int, read_range: ReadRange
) -> list[PrefillChunk]:
    prefills: list[PrefillChunk] = []
    pages = read_range.pages_of(window)
    for part, table in zip(chunks, tables, strict=True):
        end = begin + part.num_tokens
        first = _first_block(part.start, window)
        positions = np.arange(part.start, part.start + part.num_tokens)
        keys = np.arange(first * BLOCK_SIZE, part.start + part.num_tokens)
        blocks, mask = None, None
        if part.start:
            used = table[first : int(positions[-1]) // BLOCK_SIZE + 1]
            blocks = torch.from_numpy(used.copy())
        later = part.start > 0 and (window > 0 or read_range.masks_later_chunks)
        if later or 0 < window < part.num_tokens or pages is not None:
            mask = _mask(positions, keys[None, :], window, pages)
        prefills.append(PrefillChunk(begin, end, len(keys), blocks, mask))
        begin = end
    return prefills


def _mask(positions: Ints, keys: Ints, window: int, pages: PagePolicy | None) -> Tensor | None:
    """-inf where a token must not see a key, by their positions, [tokens, keys]; None if all are seen."""
    at = positions[:, None]
    outside = keys > at
    if window:
        outside |= keys <= at - window
    if pages is not None:
        outside |= ~pages.reads(at // BLOCK_SIZE, keys // BLOCK_SIZE)
    if not outside.any():
        return None
    return torch.from_numpy(np.where(outside, np.float32(-np.inf), np.float32(0)))


def _first_block(position: int, window: int) -> int:
    """The first block of its sequence that a token at that position sees."""
    return max(0, position + 1 - window) // BLOCK_SIZE if window else 0


def _keys(position: int, window: int) -> int:
    return min(position, window) if window else position
