"""The contract of all collectives backends, and the trivial backend of a single rank.

All ranks call the same operations with the same shapes in the same order; if one does not, the others time
out. Layers use only this Protocol, so a backend is one file.
"""

from typing import Protocol

from torch import Tensor


class CollectiveError(Exception):
    """A rank did not take part in time, or the backend failed. The group cannot continue."""


class Collectives(Protocol):
    """Operations between ranks; all sum in rank order, so every rank and backend gets bit-identical results.

    Attributes:
        world: Number of ranks.
        timeout_s: Longest wait for the other ranks in one operation; may be changed between operations.
        seconds: Time spent in operations since the start, waiting included.
    """

    rank: int
    world: int
    timeout_s: float
    seconds: float

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Replaces a contiguous fp32 tensor by its sum over the ranks.

        The backends of torch.distributed take bf16 as well, and sum it in fp32.

        Raises:
            CollectiveError: As for all operations.
        """
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Collects the tensors of all ranks on every rank.

        Args:
            tensor: Contiguous fp32 values, of the same shape on all ranks.

        Returns:
            All tensors in rank order, [world, *shape].
        """
        ...

    def gather(self, tensor: Tensor) -> Tensor | None:
        """As `all_gather` for rank 0 only; the other ranks get None and do not wait for rank 0."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Sends bytes from rank 0 to all ranks.

        Args:
            data: At most 1,024 bytes; ignored on other ranks than 0.

        Returns:
            The bytes that rank 0 passed.
        """
        ...

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        ...

    def close(self) -> None:
        """Frees memory and sockets; the object cannot be used afterwards."""
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
        """Returns at once."""

    def close(self) -> None:
        """Does nothing."""
