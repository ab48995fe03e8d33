"""Where what the ranks compute comes together: their shares of the residual stream, and their logits.

Ranks of one host put them into shared memory and read each other's there. Over other collectives a rank has
buffers of its own, which are added up and gathered between the ops.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.collectives.base import Collectives
from services.worker.engine.collectives.shared_memory import SharedMemoryCollectives
from services.worker.engine.native.library import Exchange
from services.worker.engine.native.packed_weights import buffer
from services.worker.engine.native.program import MAX_ROWS, Parts


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the residual stream. They alternate: one may still be read while the next is written."""

    embedding: Parts
    attention: Parts
    mlp: Parts


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a rank writes and reads.

    partial: this rank's share, [MAX_ROWS, width], where the collectives add up; else None.
    logits: this rank's columns, or in shared memory those of all ranks side by side, [MAX_ROWS, ...].
        They stay until the ranks begin the next pass, which needs rank 0: it takes the tokens of this one.
    own_logits: address of the first of this rank's columns.
    exchange: in shared memory; None where nothing is exchanged there.
    """

    shares: Shares
    partial: Tensor | None
    logits: Tensor
    own_logits: int
    exchange: Exchange | None

    @classmethod
    def make(cls, collectives: Collectives, width: int, columns: int, spin: bool) -> "Meeting":
        """For a residual stream of that padded width, and logits of so many columns of each rank."""
        if collectives.world > 1 and isinstance(collectives, SharedMemoryCollectives):
            return cls._shared(collectives, width, columns, spin)
        partial, logits = buffer(MAX_ROWS, width), buffer(MAX_ROWS, columns)
        return cls(Shares(*[Parts.local(partial)] * 3), partial, logits, logits.data_ptr(), None)

    @classmethod
    def _shared(cls, collectives: SharedMemoryCollectives, width: int, columns: int, spin: bool) -> "Meeting":
        world, rank = collectives.world, collectives.rank
        part = MAX_ROWS * width * 4
        count = MAX_ROWS * world * columns
        region = collectives.map_region(3 * world * part + count * 4)
        starts = [region.address + index * world * part for index in range(3)]
        begin = region.address + 3 * world * part
        floats = np.frombuffer(region.memory, np.float32, count, begin - region.signals)
        return cls(
            shares=Shares(*[Parts(start, start + rank * part, world, region) for start in starts]),
            partial=None,
            logits=torch.from_numpy(floats).view(MAX_ROWS, world * columns),
            own_logits=begin + rank * columns * 4,
            exchange=Exchange(
                published=region.signals, rank=rank, world=world, spin=spin, timeout_ns=0, count=0
            ),
        )
