"""Turns the slices of a plan into the index tensors that a forward pass needs.

Slices of one token (decodes) come first, by length; those of about one length are attended together, padded
to the longest of them. Longer slices (prefill chunks) are attended one by one. Everything here is made once
per step and used by every layer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.plain.placement import Placement
from services.worker.engine.rank.sequences import Ints, SequenceState
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk

PADDING = 256  # tokens that a short sequence may always be padded by


@dataclass(frozen=True, slots=True)
class Decodes:
    """One token of each of some sequences: tokens `begin` to `end` of the batch.

    blocks: [sequences * blocks a sequence], from the first that the window reaches.
    length: Keys of the longest, in tokens, the new token included.
    mask: Added to scores, or what is seen if it is boolean, [sequences, 1, 1, length]; None when each sees
        all those keys.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Prefill:
    """A chunk of one sequence: tokens `begin` to `end` of the batch.

    blocks: From the first that the window reaches to the chunk's last; None when the chunk is the start of
        its sequence.
    length: Keys, in tokens, the chunk's own included.
    mask: Added to scores, [tokens of the chunk, length]; None when plainly causal.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Reach:
    """What the tokens of a batch see in a layer, as far back as its window goes."""

    decodes: list[Decodes]
    prefills: list[Prefill]


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass.

    token_ids, positions, slots: [tokens].
    sample_rows: Tokens whose logits are wanted, in the order of the plan's sampling slices.
    reaches: By the windows of the model's layers (0: no window).
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sample_rows: Tensor
    reaches: dict[int, Reach]

    def to(self, placement: Placement) -> "Batch":
        """The same batch on a device, with masks of the type that scores have there."""
        device = placement.device

        def put(reach: Reach) -> Reach:
            return Reach(
                [
                    replace(d, blocks=d.blocks.to(device), mask=placement.put_maybe(d.mask))
                    for d in reach.decodes
                ],
                [
                    replace(
                        p,
                        blocks=None if p.blocks is None else p.blocks.to(device),
                        mask=placement.put_maybe(p.mask),
                    )
                    for p in reach.prefills
                ],
            )

        return Batch(
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            sample_rows=self.sample_rows.to(device),
            reaches={window: put(reach) for window, reach in self.reaches.items()},
        )


def make_batch(
    slices: Sequence[ScheduledChunk], states: Sequence[SequenceState], windows: Collection[int] = (0,)
) -> Batch:
    """The batch for these slices, whose states include them already, in a model with these windows."""
    # decodes by length, then the others as they come
    order = sorted(
        range(len(slices)),
        key=lambda i: (True, 0) if slices[i].num_tokens > 1 else (False, slices[i].start),
    )
    count = sum(1 for part in slices if part.num_tokens == 1)
    token_ids: list[int] = []
    positions: list[int] = []
    sizes: list[int] = []
    last_row = [0] * len(slices)
    for i in order:
        start, size = slices[i].start, slices[i].num_tokens
        token_ids += states[i].tokens.view[start : start + size].tolist()  # of a `follow` slice, too
        positions += range(start, start + size)
        sizes.append(size)
        last_row[i] = len(token_ids) - 1
    ordered = [states[i] for i in order]
    at = np.array(positions, np.int64)
    slots = _slots(at, sizes, ordered)
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.from_numpy(at),
        slots=torch.from_numpy(slots),
        sample_rows=torch.tensor([last_row[i] for i, p in enumerate(slices) if p.sample], dtype=torch.int64),
        reaches={
            window: Reach(
                _decodes(at[:count], ordered[:count], window),
                _prefills([slices[i] for i in order[count:]], ordered[count:], count, window),
            )
            for window in windows
        },
    )


def _slots(positions: Ints, sizes: list[int], states: list[SequenceState]) -> Ints:
    blocks = positions // BLOCK_SIZE
    begin = 0
    for size, state in zip(sizes, states, strict=True):
        end = begin + size
        blocks[begin:end] = state.table.view[blocks[begin:end]]
        begin = end
    return blocks * BLOCK_SIZE + positions % BLOCK_SIZE


def _decodes(positions: Ints, states: list[SequenceState], window: int) -> list[Decodes]:
    """Cuts decodes, in the order of their positions, where padding would cost more than another call."""
    parts, begin = [], 0
    for end in range(1, len(states) + 1):
        if (
            end == len(states)
            or _keys(positions[end], window) > 2 * _keys(positions[begin], window) + PADDING
        ):
            parts.append(_decode(begin, positions[begin:end], states[begin:end], window))
            begin = end
    return parts


def _decode(begin: int, positions: Ints, states: list[SequenceState], window: int) -> Decodes:
    first = np.array([_first_block(position, window) for position in positions.tolist()])
    length = int((positions + 1 - first * BLOCK_SIZE).max())
    blocks = np.zeros((len(states), -(-length // BLOCK_SIZE)), np.int64)
    for row, state in enumerate(states):
        used = state.table.view[first[row] : positions[row] // BLOCK_SIZE + 1]
        blocks[row, : len(used)] = used
    keys = first[:, None] * BLOCK_SIZE + np.arange(length)
    mask = _mask(positions, keys, window)
    return Decodes(
        begin=begin,
        end=begin + len(states),
        length=length,
        blocks=torch.from_numpy(blocks.reshape(-1)),
        mask=None if mask is None else mask.view(len(states), 1, 1, -1),
    )


def _prefills(
    slices: list[ScheduledChunk], states: list[SequenceState], begin: int, window: int
) -> list[Prefill]:
    prefills: list[Prefill] = []
    for part, state in zip(slices, states, strict=True):
        end = begin + part.num_tokens
        first = _first_block(part.start, window)
        positions = np.arange(part.start, part.start + part.num_tokens)
        keys = np.arange(first * BLOCK_SIZE, part.start + part.num_tokens)
        blocks, mask = None, None
        if part.start:
            used = state.table.view[first : int(positions[-1]) // BLOCK_SIZE + 1]
            blocks = torch.from_numpy(used.copy())
        if part.start or 0 < window < part.num_tokens:
            mask = _mask(positions, keys[None, :], window)
        prefills.append(Prefill(begin, end, len(keys), blocks, mask))
        begin = end
    return prefills


def _mask(positions: Ints, keys: Ints, window: int) -> Tensor | None:
    """-inf where a token must not see a key, by their positions, [tokens, keys]; None for nowhere."""
    at = positions[:, None]
    outside = keys > at
    if window:
        outside |= keys <= at - window
    if not outside.any():
        return None
    return torch.from_numpy(np.where(outside, np.float32(-np.inf), np.float32(0)))


def _first_block(position: int, window: int) -> int:
    """The first block of its sequence that a token at that position sees."""
    return max(0, position + 1 - window) // BLOCK_SIZE if window else 0


def _keys(position: int, window: int) -> int:
    return min(position, window) if window else position
