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
from services.worker.engine.native.program import CUT_NORMS
from services.worker.engine.native.structs.forward import RankBarrier


@dataclass(frozen=True, slots=True)
class AllReduceBuffers:
    """What a rank writes for the others, and reads of theirs.

    Partial sums of one kind alternate, since some may still be read while the next are written.

    Attributes:
        embedding: Partial sums of the embedding.
        parts: Two of a layer's parts, to be used in turns.
        squares: Two of sums of squares, [MAX_ROWS, CUT_NORMS] of each rank, to be used in turns.
        logits: This rank's columns, or in shared memory those of all ranks side by side, [MAX_ROWS, ...].
            They are valid until the ranks begin the next pass, which needs rank 0 to have taken the tokens of
            this one.
        own_logits: Address of the first of this rank's columns.
        barrier: Of the ranks in shared memory; None with other collectives.
    """

    embedding: PartialSums
    parts: tuple[PartialSums, PartialSums]
    squares: tuple[PartialSums, PartialSums]
    logits: Tensor
    own_logits: int
    barrier: RankBarrier | None

    @classmethod
    def allocate(cls, collectives: Collectives, width: int, columns: int, spin: bool) -> "AllReduceBuffers":
        """Buffers for a residual stream of that padded width and that many columns of logits per rank."""
        if collectives.world > 1 and isinstance(collectives, SharedMemoryCollectives):
            return cls._allocate_shared(collectives, width, columns, spin)
        logits = buffer(MAX_ROWS, columns)
        sums, squares = (PartialSums.local(buffer(MAX_ROWS, size)) for size in (width, CUT_NORMS))
        return cls(sums, (sums, sums), (squares, squares), logits, logits.data_ptr(), None)

    @classmethod
    def _allocate_shared(
        cls, collectives: SharedMemoryCollectives, width: int, columns: int, spin: bool
    ) -> "AllReduceBuffers":
        world, rank = collectives.world, collectives.rank
        sizes = [MAX_ROWS * numbers * 4 for numbers in (width, width, width, CUT_NORMS, CUT_NORMS)]
        count = MAX_ROWS * world * columns
        region = collectives.map_region(world * sum(sizes) + count * 4)
        embedding, first, second, *squares = (
            PartialSums(start, start + rank * size, world, region)
            for start, size in zip(
                (region.address + world * sum(sizes[:index]) for index in range(len(sizes))),
                sizes,
                strict=True,
            )
        )
        begin = region.address + world * sum(sizes)
        floats = np.frombuffer(region.memory, np.float32, count, begin - region.signals)
        return cls(
            embedding=embedding,
            parts=(first, second),
            squares=(squares[0], squares[1]),
            logits=torch.from_numpy(floats).view(MAX_ROWS, world * columns),
            own_logits=begin + rank * columns * 4,
            barrier=RankBarrier(published=region.signals, rank=rank, world=world, spin=spin),
        )
