"""A tensor as a part of a stored one: some rows, one of many, transposed, in another order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from services.worker.engine.checkpoint.stored_tensor import StoredTensor


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Rows of each head that are stored in pairs which are rotated together.

    Ranks want the first rows of all pairs before the second ones, as in Hugging Face's Llama.

    Attributes:
        head: Rows of a head.
        first: The first row of a head that is in a pair.
    """

    head: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """How a canonical tensor is found in a stored one.

    Its rows are those at `first` and after, in groups of `width` that are `stride` rows apart.

    Attributes:
        stored: Name of the stored tensor.
        stored_shape: Of the whole stored tensor.
        index: Which one of the stored tensor's first dimension; None: there is no such dimension.
        transposed: Rows are stored as columns.
        pairs: None: rows are in the wanted order.
    """

    stored: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    index: int | None = None
    first: int = 0
    width: int
    stride: int
    transposed: bool = False
    pairs: RowPairs | None = None

    def stored_row(self, row: int) -> int:
        """Where a row is stored."""
        group, position = divmod(row, self.width)
        return self.first + group * self.stride + position

    def runs(self, rows: range) -> Iterator[range]:
        """The stored rows of consecutive rows, each range as long as the layout allows."""
        begin = rows.start
        while begin < rows.stop:
            stored = self.stored_row(begin)
            count = rows.stop - begin
            if self.stride != self.width:
                count = min(count, self.width - begin % self.width)
            yield range(stored, stored + count)
            begin += count

    def part_of(self, stored: StoredTensor) -> StoredTensor:
        """The one of the stored tensor's first dimension that the view is about."""
        if self.index is None:
            return stored
        size = (stored.end - stored.begin) // stored.shape[0]
        begin = stored.begin + self.index * size
        scales = self.part_of(stored.scales) if stored.scales else None
        return replace(stored, shape=stored.shape[1:], begin=begin, end=begin + size, scales=scales)


@dataclass(frozen=True, slots=True)
class LocatedTensor:
    """A canonical tensor, its view, and the stored tensor of one or two dimensions that this reads."""

    view: TensorView
    stored: StoredTensor
