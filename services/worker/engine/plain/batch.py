"""Turns the scheduled chunks of a plan into the index tensors of a forward pass.

Chunks of one token (decodes) come first, by length; those of about one length are attended together, padded
to the longest of them. Longer ones (prefill chunks) are attended one by one. All tensors are made once per
step and used by every layer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.plain.placement import Placement
from services.worker.engine.rank.sequences import Ints, SequenceState
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk

PADDING = 256  # tokens by which a sequence may be padded, however short it is


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes that are attended together: tokens `begin` to `end` of the batch, one of each sequence.

    Attributes:
        begin: First token.
        end: Token after the last.
        length: Keys of the longest sequence, in tokens, the new token included.
        blocks: [sequences * blocks a sequence], from the first that the window reaches.
        mask: Added to scores, or if boolean the keys that are seen, [sequences, 1, 1, length]; None if all
            are.
        newest: Which of its keys is the sequence's new token, [sequences].
        window: The mask leaves so many keys up to the newest one, or 0: all of them. None: other ones.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor
    mask: Tensor | None
    newest: Tensor
    window: int | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A chunk of one sequence: tokens `begin` to `end` of the batch.

    Attributes:
        begin: First token.
        end: Token after the last.
        length: Keys, in tokens, the chunk's own included.
        blocks: From the first that the window reaches to the chunk's last; None if the chunk begins its
            sequence.
        mask: Added to scores, [tokens of the chunk, length]; None for a causal mask, in which the last token
            sees all keys.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor | None
    mask: Tensor | None


class ReadRange(NamedTuple):
    """How far back the layers of a model read.

    Attributes:
        windows: Of its layers; 0: no window.
        pages: Which pages a token reads in layers without a window; None: all.
        masks_later_chunks: A chunk that continues its prompt gets a mask even where it is causal. On GPUs
            there is a kernel for those, and a mask would be made on the CPU.
    """

    windows: Collection[int] = (0,)
    pages: PagePolicy | None = None
    masks_later_chunks: bool = True

    def pages_of(self, window: int) -> PagePolicy | None:
        """The policy of layers with that window."""
        return None if window else self.pages


EVERYTHING = ReadRange()


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The keys that the tokens of a batch attend to, in layers of one window."""

    decodes: list[DecodeGroup]
    prefills: list[PrefillChunk]


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Inputs of one forward pass.

    Attributes:
        token_ids: [tokens].
        positions: [tokens].
        slots: Of the cache, [tokens].
        sample_rows: Tokens whose logits are computed, in the order of the plan's sampling chunks.
        attention_metadata: By the windows of the model's layers (0: no window).
        prompt_rows: Tokens whose rows prompts want (`SequenceState.prompt_rows`), in the order of the chunks.
        sliding_slots: Of the layers with a sliding window, where these have a pool of their own.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sample_rows: Tensor
    attention_metadata: dict[int, AttentionMetadata]
    prompt_rows: Tensor | None = None
    sliding_slots: Tensor | None = None

    def slots_of(self, window: int) -> Tensor:
        """The slots in layers of that window."""
        return self.sliding_slots if window and self.sliding_slots is not None else self.slots

    def to(self, placement: Placement) -> "PlainBatch":
        """Copies the batch to a device, with masks of the type of the scores there."""
        device = placement.device

        def move(metadata: AttentionMetadata) -> AttentionMetadata:
            return AttentionMetadata(
                [
                    replace(
                        d,
                        blocks=d.blocks.to(device),
                        mask=placement.move_optional(d.mask),
                        newest=d.newest.to(device),
                    )
                    for d in metadata.decodes
                ],
                [
                    replace(
                        p,
                        blocks=None if p.blocks is None else p.blocks.to(device),
                        mask=placement.move_optional(p.mask),
                    )
                    for p in metadata.prefills
                ],
            )

        return PlainBatch(
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            sample_rows=self.sample_rows.to(device),
            attention_metadata={
                window: move(metadata) for window, metadata in self.attention_metadata.items()
            },
            prompt_rows=None if self.prompt_rows is None else self.prompt_rows.to(device),
            sliding_slots=None if self.sliding_slots is None else self.sliding_slots.to(device),
        )


def make_batch(
    chunks: Sequence[ScheduledChunk],
    states: Sequence[SequenceState],
    read_range: ReadRange = EVERYTHING,
    *,
    sliding: bool = False,
) -> PlainBatch:
    """Makes the batch of these chunks, whose states include them already, for a model of that reach.

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
        token_ids += states[i].tokens.view[start : start + size].tolist()  # of a `follow` slice, too
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
