"""The buffers through which ranks combine their partial sums of the residual stream, and their logits.

Ranks of one host write into shared memory and read each other's there. With other collectives a rank has
buffers of its own, which are added up and gathered between the ops.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.collectives.base import Collectives
from services.worker.engine.collectives.shared_memory import SharedMemoryCollectives
from services.worker.engine.native.operands import MAX_ROWS, PartialSums
from services.worker.engine.native.packed_weights import buffer
from services.worker.engine.native.structs import RankBarrier


@dataclass(frozen=True, slots=True)
class AllReduceBuffers:
    """What a rank writes for the others, and reads of theirs.

    The three partial sums alternate, since one may still be read while the next is written.

    Attributes:
        embedding: Partial sums of the embedding.
        attention: Partial sums of a layer's attention.
        mlp: Partial sums of a layer's MLP.
        own_partial: This rank's partial sums, [MAX_ROWS, width], if the collectives add them up; else None.
        logits: This rank's columns, or in shared memory those of all ranks side by side, [MAX_ROWS, ...].
            They are valid until the ranks begin the next pass, which needs rank 0 to have taken the tokens of
            this one.
        own_logits: Address of the first of this rank's columns.
        barrier: Of the ranks in shared memory; None with other collectives.
    """

    embedding: PartialSums
    attention: PartialSums
    mlp: PartialSums
    own_partial: Tensor | None
    logits: Tensor
    own_logits: int
    barrier: RankBarrier | None

    @classmethod
    def allocate(cls, collectives: Collectives, width: int, columns: int, spin: bool) -> "AllReduceBuffers":
        """Buffers for a residual stream of that padded width and that many columns of logits per rank."""
        if collectives.world > 1 and isinstance(collectives, SharedMemoryCollectives):
            return cls._allocate_shared(collectives, width, columns, spin)
        own, logits = buffer(MAX_ROWS, width), buffer(MAX_ROWS, columns)
        sums = PartialSums.local(own)
        return cls(sums, sums, sums, own, logits, logits.data_ptr(), None)

    @classmethod
    def _allocate_shared(
        cls, collectives: SharedMemoryCollectives, width: int, columns: int, spin: bool
    ) -> "AllReduceBuffers":
        world, rank = collectives.world, collectives.rank
        sums_bytes = MAX_ROWS * width * 4  # of one rank
        count = MAX_ROWS * world * columns
        region = collectives.map_region(3 * world * sums_bytes + count * 4)
        embedding, attention, mlp = (
            PartialSums(start, start + rank * sums_bytes, world, region)
            for start in (region.address + index * world * sums_bytes for index in range(3))
        )
        begin = region.address + 3 * world * sums_bytes
        floats = np.frombuffer(region.memory, np.float32, count, begin - region.signals)
        return cls(
            embedding=embedding,
            attention=attention,
            mlp=mlp,
            own_partial=None,
            logits=torch.from_numpy(floats).view(MAX_ROWS, world * columns),
            own_logits=begin + rank * columns * 4,
            barrier=RankBarrier(published=region.signals, rank=rank, world=world, spin=spin),
        )
