"""The block calls of the KV state service, typed."""

from collections.abc import Sequence
from typing import TypeVar

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.messages import BlocksCommit, BlocksCommitted, BlocksFind, BlocksFound, HeldBlocks, Wire

M = TypeVar("M", bound=Wire)


class BlocksClient:
    """Finds and commits KV blocks by name. Calls raise `Unavailable` when the service does not answer."""

    def __init__(self, bus: Bus, *, timeout_s: float = 2.0) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def find(
        self, names: Sequence[bytes], *, lease_ms: int = 0, parts: int = 0, timeout_s: float | None = None
    ) -> BlocksFound:
        """How many of the leading `names` are stored; those are not evicted for `lease_ms`.

        With `parts`, the number of parts of a block, stored blocks that no group has committed count as well.
        """
        message = BlocksFind(names=b"".join(names), lease_ms=lease_ms, parts=parts)
        return await self._call(subjects.BLOCKS_FIND, message, BlocksFound, timeout_s)

    async def commit(
        self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float | None = None
    ) -> BlocksCommitted:
        """Commits blocks that all ranks of `group` have written, with their holders, entry by entry."""
        message = BlocksCommit(group=group, held=list(held))
        return await self._call(subjects.BLOCKS_COMMIT, message, BlocksCommitted, timeout_s)

    async def _call(self, subject: str, message: Wire, kind: type[M], timeout_s: float | None) -> M:
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return await call(self._bus, subject, message, kind, timeout_s=timeout)
