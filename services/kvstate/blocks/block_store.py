"""The contract of a store of KV blocks' facts: `redis_blocks.py` is the real one, `memory_blocks.py` a twin.

The store knows names, sizes and holders; the bytes themselves are written and read by ranks. A block is
registered when all its parts are there; only registered blocks are found, counted and evicted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from services.kvstate.sessions.session_store import SessionFate


class WrittenBlocks(NamedTuple):
    """Blocks of one sequence, from its first on, each of `parts` parts. An empty session: nobody's."""

    tenant: str
    session_id: str
    names: Sequence[bytes]
    parts: int
    priority: int = 0


class RegisteredBlocks(NamedTuple):
    """What became of `WrittenBlocks`.

    sizes: bytes of each block; -1: it is not in the store. fresh: whether this call registered it.
    tenant_bytes, total_bytes: of all blocks of the tenant, and of all, after it.
    """

    sizes: list[int]
    fresh: list[bool]
    tenant_bytes: int
    total_bytes: int


class FoundBlocks(NamedTuple):
    """Leading blocks that are there, and their bytes."""

    blocks: int = 0
    num_bytes: int = 0


class FreedBlocks(NamedTuple):
    """Blocks that went, and their bytes."""

    blocks: int = 0
    num_bytes: int = 0


class BlockUsage(NamedTuple):
    """What a tenant, or all, have stored now; and bytes times the seconds they were kept so far.

    The account of a tenant that has had no blocks for a day begins anew.
    """

    num_bytes: int = 0
    blocks: int = 0
    byte_seconds: float = 0.0


class BlockTotals(NamedTuple):
    """The store as a whole.

    accounts: by tenant. Memory in bytes; 0: no limit, or not known. policy: what Redis itself deletes when it
    is full. session_bytes: of the sessions in the same Redis.
    """

    total: BlockUsage
    accounts: Mapping[str, BlockUsage]
    holders: int = 0
    leases: int = 0
    used_memory: int = 0
    maxmemory: int = 0
    machine_memory: int = 0
    policy: str = "noeviction"
    session_bytes: int = 0


class ReconcileStep(NamedTuple):
    """A step through all blocks. lost: registered blocks whose bytes were gone. cursor: for the next step."""

    lost: int
    cursor: tuple[int, int]


class BlockStore(Protocol):
    """Facts about KV blocks, by name. All methods may be called at the same time, and repeated as they are.

    Every one raises `Unavailable` (reason `kv_store`) when the store cannot be reached or does not answer,
    and those that add something `StoreFull` when there is no memory for it.
    """

    async def find(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """How many leading blocks are there. With a lease they stay that long at least.

        Blocks that are not registered count if they have so many parts: the group that wrote them may have
        died before it told. Their bytes are not in the sum.
        That does not count as use: whoever uses blocks commits them again after the turn.
        """
        ...

    async def register(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        """Verifies that blocks have all their parts, registers those that are new, and counts all as used."""
        ...

    async def hold(self, tenant: str, session_id: str, names: Sequence[bytes]) -> None:
        """Makes a session hold exactly these. The sweep looks after it soon: it may be deleted by now.

        What it held before and nobody else holds stays by age alone, but goes at the latest with the session.
        """
        ...

    async def evict(self, num_bytes: int, *, tenant: str = "", keep: Sequence[bytes] = ()) -> FreedBlocks:
        """A step that deletes blocks by score, of a tenant or of all, until `num_bytes` are free.

        It frees less when it has done its share, and nothing when all that is left is leased or in `keep`.
        """
        ...

    async def forget(self, names: Sequence[bytes]) -> FreedBlocks:
        """Deletes these blocks, whoever holds them."""
        ...

    async def release(self, tenant: str, session_id: str) -> list[bytes]:
        """The session holds nothing any more, and what no other one holds or held is deleted: these names."""
        ...

    async def usage(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """What each of these sessions has stored, with what it shares."""
        ...

    async def totals(self) -> BlockTotals:
        """Counts and accounts of all."""
        ...

    async def become_sweeper(self, owner: str, for_ms: int) -> bool:
        """Whether nobody else sweeps; nobody else will for so long."""
        ...

    async def due_holders(self, limit: int) -> list[tuple[str, str]]:
        """Up to `limit` sessions that hold blocks and are due to be looked after, as tenant and id."""
        ...

    async def check_holders(
        self, fates: Mapping[tuple[str, str], SessionFate], *, recheck_ms: int, grace_ms: int
    ) -> int:
        """Releases those that are over by `block_eviction.holding_over`; returns how many blocks went.

        The others are counted anew, and due again after `recheck_ms`.
        """
        ...

    async def reconcile(self, cursor: tuple[int, int], *, orphan_ms: int) -> ReconcileStep:
        """A step through facts and bytes: facts without bytes go; bytes without facts expire in `orphan_ms`.

        Begins at (0, 0), and comes back to zeros when it was through either.
        """
        ...

    async def close(self) -> None:
        """Lets go of all connections. May be called twice."""
        ...
