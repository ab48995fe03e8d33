"""Turns the slices of a plan into the index tensors that a forward pass needs.

Slices of one token (decodes) come first, by length; those of about one length are attended together, padded
to the longest of them. Longer slices (prefill chunks) are attended one by one. Everything here is made once
per step and used by every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.domain.plan import BLOCK_SIZE, Slice
from services.worker.engine.sequences import SequenceState

PADDING = 256  # tokens that a short sequence may always be padded by


@dataclass(frozen=True, slots=True)
class Decodes:
    """One token of each of some sequences: tokens `begin` to `end` of the batch.

    blocks: [sequences * longest table]; length: of the longest, in tokens, the new token included.
    mask: added to scores, [sequences, 1, 1, length]; None when all are equally long.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Prefill:
    """A chunk of one sequence: tokens `begin` to `end` of the batch, after `start` earlier positions.

    blocks: [blocks that hold positions 0 to length]; None when the chunk is the start of its sequence.
    mask: added to scores, [tokens of the chunk, length]; None when plainly causal.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass.

    token_ids, positions, slots: [tokens].
    sample_rows: tokens whose logits are wanted, in the order of the plan's sampling slices.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sample_rows: Tensor
    decodes: list[Decodes]
    prefills: list[Prefill]


def make_batch(slices: Sequence[Slice], states: Sequence[SequenceState]) -> Batch:
    """The batch for these slices, whose states include them already."""
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
    prefills, begin = [], count
    for i, state in zip(order[count:], ordered[count:], strict=True):
        prefills.append(_prefill(slices[i], state, begin))
        begin = prefills[-1].end
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.from_numpy(at),
        slots=torch.from_numpy(slots),
        sample_rows=torch.tensor([last_row[i] for i, p in enumerate(slices) if p.sample], dtype=torch.int64),
        decodes=_decodes(positions[:count], ordered[:count]),
        prefills=prefills,
    )


def _slots(
    positions: np.ndarray[tuple[int], np.dtype[np.int64]], sizes: list[int], states: list[SequenceState]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    blocks = positions // BLOCK_SIZE
    begin = 0
    for size, state in zip(sizes, states, strict=True):
        end = begin + size
        blocks[begin:end] = state.table.view[blocks[begin:end]]
        begin = end
    return blocks * BLOCK_SIZE + positions % BLOCK_SIZE


def _decodes(positions: list[int], states: list[SequenceState]) -> list[Decodes]:
    """Cuts decodes, in the order of their positions, where padding would cost more than another call."""
    parts, begin = [], 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] > 2 * positions[begin] + PADDING:
            parts.append(_decode(begin, positions[begin:end], states[begin:end]))
            begin = end
    return parts


def _decode(begin: int, positions: list[int], states: list[SequenceState]) -> Decodes:
    count, length = len(states), positions[-1] + 1
    if count == 1:
        return Decodes(begin, begin + 1, length, _table(states[0], length), None)
    width = -(-length // BLOCK_SIZE)
    blocks = np.zeros((count, width), np.int64)
    for row, state in enumerate(states):
        used = min(state.table.size, width)
        blocks[row, :used] = state.table.view[:used]
    mask = None
    if positions[0] + 1 < length:
        outside = np.arange(length) > np.array(positions)[:, None]
        mask = torch.from_numpy(np.where(outside, np.float32(-np.inf), np.float32(0))).view(count, 1, 1, -1)
    return Decodes(begin, begin + count, length, torch.from_numpy(blocks.reshape(-1)), mask)


def _prefill(part: Slice, state: SequenceState, begin: int) -> Prefill:
    tokens = part.num_tokens
    length = part.start + tokens
    if part.start == 0:
        return Prefill(begin, begin + tokens, length, None, None)
    later = torch.arange(length) > torch.arange(part.start, length).unsqueeze(1)
    mask = torch.zeros(tokens, length).masked_fill_(later, -torch.inf)
    return Prefill(begin, begin + tokens, length, _table(state, length), mask)


def _table(state: SequenceState, length: int) -> Tensor:
    return torch.from_numpy(state.table.view[: -(-length // BLOCK_SIZE)].copy())
