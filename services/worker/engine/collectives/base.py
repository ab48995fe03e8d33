"""The contract of all collectives backends, and the trivial one for a single rank.

All ranks call the same operations with the same shapes in the same order; a rank that does not is told so by
a timeout on the others. Layers use this Protocol and nothing else, so a backend is one file.
"""

from typing import Protocol

from torch import Tensor


class CollectiveError(Exception):
    """A rank did not take part in time, or the backend broke. The group cannot go on."""


class Collectives(Protocol):
    """Sums are made in the order of ranks, so every rank (and every backend) gets bit-identical results.

    rank, world: this rank's number and how many there are.
    timeout_s: longest wait for the other ranks in one operation; may be changed between operations.
    seconds: time spent in operations since the start, waiting included.
    """

    rank: int
    world: int
    timeout_s: float
    seconds: float

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Replaces a contiguous fp32 tensor by its sum over the ranks. Raises `CollectiveError`.

        The backends of torch.distributed take bf16 as well, and sum it in fp32.
        """
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All ranks' tensors (contiguous fp32, one shape) as [world, *shape]. Raises `CollectiveError`."""
        ...

    def gather(self, tensor: Tensor) -> Tensor | None:
        """As `all_gather`, but for rank 0 only; the others get None and do not wait for it."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 passed, at most 1,024 bytes; the argument of others is ignored."""
        ...

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        ...

    def close(self) -> None:
        """Frees memory and sockets; the object is unusable then."""
        ...


class SingleRank:
    """The backend of a group of one: every operation is the identity."""

    rank = 0
    world = 1

    def __init__(self) -> None:
        self.timeout_s = 0.0
        self.seconds = 0.0

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Leaves the tensor as it is."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensor as [1, *shape]."""
        return tensor.unsqueeze(0)

    def gather(self, tensor: Tensor) -> Tensor | None:
        """The tensor as [1, *shape]."""
        return tensor.unsqueeze(0)

    def broadcast(self, data: bytes) -> bytes:
        """The argument."""
        return data

    def barrier(self) -> None:
        """Nobody to wait for."""

    def close(self) -> None:
        """Nothing to free."""
