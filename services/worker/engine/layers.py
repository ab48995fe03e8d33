"""Tensor-parallel layers: which slice of a weight a rank holds, and where ranks meet.

All sharding of the model is in this file (and all communication in `collectives/`). Column-parallel layers
split the output features and need no communication, row-parallel ones split the input features and end with
an all-reduce (Shoeybi et al., Megatron-LM, 2019). Activations between layers are whole on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.collectives.base import Collectives
from services.worker.engine.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class Source:
    """Where a rank's layers come from: the weight files, and the collectives that say which rank it is."""

    checkpoint: Checkpoint
    collectives: Collectives

    def part(self, size: int) -> slice:
        """This rank's part of a dimension that divides by the number of ranks."""
        width = size // self.collectives.world
        return slice(self.collectives.rank * width, (self.collectives.rank + 1) * width)

    def vocab_part(self, vocab_size: int) -> slice:
        """This rank's token ids: equal ranges, the last of them cut at the end of the vocabulary."""
        width = -(-vocab_size // self.collectives.world)
        begin = self.collectives.rank * width
        return slice(min(begin, vocab_size), min(begin + width, vocab_size))


class ColumnParallelLinear:
    """x @ W^T + b for this rank's rows of one or more matrices, fused into one: [tokens, sum of parts].

    Args:
        weight: [out of this rank, in].
        bias: [out of this rank], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def load(
        cls, source: Source, parts: Sequence[tuple[str, int]], in_features: int, bias: bool
    ) -> "ColumnParallelLinear":
        """Loads this rank's rows of each part: a module's name and its output features."""
        weights = [
            source.checkpoint.read(f"{name}.weight", (size, in_features), rows=source.part(size))
            for name, size in parts
        ]
        biases = [
            source.checkpoint.read(f"{name}.bias", (size,), rows=source.part(size))
            for name, size in parts
            if bias
        ]
        return cls(torch.cat(weights), torch.cat(biases) if bias else None)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out of this rank]."""
        return F.linear(hidden, self.weight, self.bias)


class RowParallelLinear:
    """x @ W^T + b where each rank has some columns of W and the matching features of x; all-reduced.

    Args:
        weight: [out, in of this rank].
        bias: [out], added once, after the sum; or None.
        collectives: Joins the ranks' partial sums.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, collectives: Collectives) -> None:
        self.weight = weight
        self.bias = bias
        self.collectives = collectives

    @classmethod
    def load(cls, source: Source, name: str, shape: tuple[int, int], bias: bool) -> "RowParallelLinear":
        """Loads this rank's columns of the module's matrix, whose whole shape is [out, in]."""
        weight = source.checkpoint.read(f"{name}.weight", shape, columns=source.part(shape[1]))
        offset = source.checkpoint.read(f"{name}.bias", shape[:1]) if bias else None
        return cls(weight.contiguous(), offset, source.collectives)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, in of this rank] -> [tokens, out], whole on every rank."""
        partial = F.linear(hidden, self.weight)
        self.collectives.all_reduce_sum(partial)
        return partial if self.bias is None else partial.add_(self.bias)


class VocabParallelEmbedding:
    """Rows of the embedding table by token id; each rank holds a range of ids, the last one maybe fewer.

    Args:
        weight: [ids of this rank, hidden].
        first: The first id of this rank.
        collectives: Joins the ranks' rows.
    """

    def __init__(self, weight: Tensor, first: int, collectives: Collectives) -> None:
        # one more row, zero, stands for the ids of other ranks
        self.table = torch.cat((weight, weight.new_zeros(1, weight.shape[1])))
        self.first = first
        self.collectives = collectives

    @classmethod
    def load(cls, source: Source, name: str, shape: tuple[int, int]) -> "VocabParallelEmbedding":
        """Loads this rank's rows of the table, whose whole shape is [vocab, hidden]."""
        rows = source.vocab_part(shape[0])
        weight = source.checkpoint.read(f"{name}.weight", shape, rows=rows)
        return cls(weight, rows.start, source.collectives)

    @property
    def weight(self) -> Tensor:
        """[ids of this rank, hidden], without the extra row."""
        return self.table[:-1]

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden], whole on every rank."""
        if self.collectives.world == 1:
            return F.embedding(token_ids, self.table)
        rows = token_ids - self.first
        extra = self.table.shape[0] - 1
        rows.masked_fill_((rows < 0) | (rows > extra), extra)
        hidden = F.embedding(rows, self.table)
        self.collectives.all_reduce_sum(hidden)
        return hidden


class VocabParallelHead:
    """Logits over the vocabulary: each rank computes those of its ids, rank 0 gets all.

    Args:
        weight: [ids of this rank, hidden]; the embedding's own when the model ties them.
        vocab_size: Of the whole model.
        collectives: Brings the ranks' logits together.
    """

    def __init__(self, weight: Tensor, vocab_size: int, collectives: Collectives) -> None:
        padding = -(-vocab_size // collectives.world) - weight.shape[0]
        # every rank gathers the same width
        self.weight = F.pad(weight, (0, 0, 0, padding)) if padding else weight
        self.vocab_size = vocab_size
        self.collectives = collectives

    @classmethod
    def load(cls, source: Source, name: str, shape: tuple[int, int]) -> "VocabParallelHead":
        """Loads this rank's rows of the matrix, whose whole shape is [vocab, hidden]."""
        weight = source.checkpoint.read(f"{name}.weight", shape, rows=source.vocab_part(shape[0]))
        return cls(weight, shape[0], source.collectives)

    def __call__(self, hidden: Tensor) -> Tensor | None:
        """[rows, hidden] -> [rows, vocab] on rank 0, None on the others."""
        gathered = self.collectives.gather(F.linear(hidden, self.weight))
        if gathered is None or self.collectives.world == 1:
            return None if gathered is None else gathered[0]
        # [world, rows, ids of a rank] -> [rows, vocab]
        return gathered.transpose(0, 1).reshape(hidden.shape[0], -1)[:, : self.vocab_size]
