"""Inputs of linears whose codes hold the columns in another order (`EncodedMatrix.order`)."""

from collections.abc import Callable

from torch import Tensor

from services.worker.engine.native.operands import Activation, InputKinds, address_of
from services.worker.engine.native.packed_weights import PackedLinear
from services.worker.engine.native.structs.ops import GatherOp, Op


class GatheredColumns:
    """Makes activations with their columns in the order of a linear; those of one width share a buffer."""

    def __init__(self) -> None:
        self._targets: dict[int, Activation] = {}  # by the number of inputs
        self._rows: dict[int, Tensor] = {}  # where the rows of an activation are, by the address of its own

    def rows_are(self, activation: Activation, rows: Tensor) -> None:
        """Notes where the rows are from which an activation's tiles were made last."""
        self._rows[address_of(activation.rows)] = rows

    def rows_of(self, activation: Activation) -> Tensor:
        """The rows from which an activation's tiles were made last."""
        return self._rows.get(address_of(activation.rows), activation.rows)

    def add(self, append: Callable[..., None], source: Activation, weights: PackedLinear) -> Activation:
        """Adds the op that a linear needs before it, if any.

        Args:
            append: Takes an op, and what it points to.

        Returns:
            What the linear reads.
        """
        if weights.order is None:
            return source
        if weights.inputs not in self._targets:
            self._targets[weights.inputs] = Activation.allocate(weights.inputs, InputKinds(codes=True))
        target, rows = self._targets[weights.inputs], self.rows_of(source)
        op: Op = GatherOp(
            source=address_of(rows),
            stride=rows.shape[1],
            order=address_of(weights.order),
            rows=address_of(target.rows),
            width=target.width,
            tiled=target.tiled,
        )
        append(op, rows, weights.order, target)
        return target
