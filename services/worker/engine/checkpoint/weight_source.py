"""The tensors of a model as one rank reads them: whole, its share of rows or columns, or shared by all ranks.

Each byte of the files is read at most once per group: a slice by its rank; tensors that every rank needs
(norms, routers, biases of row-parallel layers, keys and values if there are more ranks than KV heads) by rank
0, which shares them by an all-reduce. So all ranks read the same tensors in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, Matrix, have_one_order
from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor
from services.worker.engine.checkpoint.rank_shares import share_of_mlp, share_of_vocabulary
from services.worker.engine.checkpoint.slice_reader import dtype_of
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import NormConfig

WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Some rows of a tensor, as a part of a fused one.

    Attributes:
        shared: Read by rank 0 for all.
    """

    name: str
    rows: slice
    shared: bool = False


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The weight files, and the collectives, whose rank and world say which slices to read.

    Attributes:
        tensors: Of the model, by their canonical names.
        codes: Matrices that are stored as codes are read as codes, where no type is asked for.
    """

    checkpoint: Checkpoint
    collectives: Collectives
    tensors: Mapping[str, LocatedTensor]
    codes: bool = False

    def own_part(self, size: int) -> slice:
        """This rank's part of an MLP's inner columns; ranks' parts may differ by a unit."""
        return to_slice(share_of_mlp(size, self.collectives.rank, self.collectives.world))

    def own_token_ids(self, vocab_size: int) -> slice:
        """This rank's token ids: equal ranges, the last ones cut at the end of the vocabulary."""
        return to_slice(share_of_vocabulary(vocab_size, self.collectives.rank, self.collectives.world))

    def dtype_of(self, *names: str) -> torch.dtype:
        """A type that holds all values of these tensors exactly."""
        return reduce(torch.promote_types, (dtype_of(self.tensors[name].stored) for name in names))

    def read(
        self,
        name: str,
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        dtype: torch.dtype | None = torch.float32,
    ) -> Tensor:
        """Some rows and columns of a tensor; `dtype` None for the stored one."""
        shape = self.tensors[name].view.shape
        parts = [range(size)[part] for size, part in zip(shape, (rows, columns), strict=False)]
        out = torch.empty([len(part) for part in parts], dtype=dtype or self.dtype_of(name))
        self.read_into(out, name, rows, columns)
        return out

    def read_into(self, out: Tensor, name: str, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """As `read`, into a contiguous tensor of the slice's shape."""
        self.checkpoint.read_located(out, self.tensors[name], rows, columns)

    def read_rows(self, parts: Sequence[TensorRows], dtype: torch.dtype | None = torch.float32) -> Tensor:
        """Rows of several tensors in one; without a dtype, of a type that holds all of them exactly."""
        shapes = [self.tensors[part.name].view.shape for part in parts]
        counts = [len(range(shape[0])[part.rows]) for part, shape in zip(parts, shapes, strict=True)]
        kind = dtype or self.dtype_of(*(part.name for part in parts))
        fused = torch.empty((sum(counts), *shapes[0][1:]), dtype=kind)
        for part, out in zip(parts, torch.split(fused, counts), strict=True):
            if part.shared:
                out.copy_(self.load_replicated(part.name)[part.rows])
            else:
                self.read_into(out, part.name, part.rows)
        return fused

    def read_matrix(
        self,
        name: str,
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        dtype: torch.dtype | None = torch.float32,
    ) -> Matrix:
        """As `read`, or as codes; see `codes`."""
        if self.codes and dtype is None:
            found = self.checkpoint.read_codes(self.tensors[name], rows, columns)
            if found is not None:
                return found
        return self.read(name, rows, columns, dtype)

    def read_matrix_rows(
        self, parts: Sequence[TensorRows], dtype: torch.dtype | None = torch.float32
    ) -> Matrix:
        """As `read_rows`, or as codes; then each rank reads what ranks share."""
        if self.codes and dtype is None:
            found = [self.checkpoint.read_codes(self.tensors[part.name], part.rows) for part in parts]
            matrices = [matrix for matrix in found if matrix is not None]
            if len(matrices) == len(parts) and have_one_order(matrices):
                return EncodedMatrix.joined(matrices)
        return self.read_rows(parts, dtype)

    def load_replicated(self, name: str) -> Tensor:
        """A tensor that every rank needs, fp32: read by rank 0, then summed with zeros of the others."""
        tensor = self.read(name) if self.collectives.rank == 0 else torch.zeros(self.tensors[name].view.shape)
        self.collectives.all_reduce_sum(tensor)
        return tensor

    def load_norm(self, name: str, norm: NormConfig) -> NormWeights:
        """A norm, the same on all ranks."""
        weight = self.load_replicated(f"{name}.weight") + norm.offset
        return NormWeights(weight=weight, bias=self.load_replicated(f"{name}.bias") if norm.bias else None)

    def load_norm_part(self, name: str, norm: NormConfig, rows: slice, shared: bool = False) -> NormWeights:
        """This rank's part of a norm."""
        weight = self.read_rows([TensorRows(f"{name}.weight", rows, shared)]) + norm.offset
        bias = self.read_rows([TensorRows(f"{name}.bias", rows, shared)]) if norm.bias else None
        return NormWeights(weight=weight, bias=bias)


def to_slice(share: range) -> slice:
    """The same as a slice."""
    return slice(share.start, share.stop)
