"""The contract of a store of facts about KV blocks.

`redis_blocks.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).

The store knows names, sizes and holders; the bytes themselves are written and read by ranks. A block is
registered when all its parts are there; only registered blocks are found, counted and evicted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from services.kvstate.sessions.store import SessionFate


class WrittenBlocks(NamedTuple):
    """Leading blocks of a sequence, each of `parts` parts. An empty `session_id`: no session holds them."""

    tenant: str
    session_id: str
    names: Sequence[bytes]
    parts: int
    priority: int = 0


class RegisteredBlocks(NamedTuple):
    """The outcome of registering `WrittenBlocks`.

    Attributes:
        sizes: Bytes of each block; -1 for one that is not in the store.
        fresh: Whether this call registered it, for each block.
        tenant_bytes: Bytes of all blocks of the tenant afterwards.
        total_bytes: Bytes of the blocks of all tenants afterwards.
    """

    sizes: list[int]
    fresh: list[bool]
    tenant_bytes: int
    total_bytes: int


class FoundBlocks(NamedTuple):
    """The number of leading blocks that are stored, and their bytes."""

    blocks: int = 0
    num_bytes: int = 0


class FreedBlocks(NamedTuple):
    """The number of deleted blocks, and their bytes."""

    blocks: int = 0
    num_bytes: int = 0


class BlockUsage(NamedTuple):
    """The blocks of one tenant, one session or all tenants.

    Attributes:
        num_bytes: Bytes stored now.
        blocks: Blocks stored now.
        byte_seconds: Bytes times the seconds they were kept so far. It begins at 0 again for a tenant
            without blocks for a day.
    """

    num_bytes: int = 0
    blocks: int = 0
    byte_seconds: float = 0.0


class BlockTotals(NamedTuple):
    """The store as a whole. Memory is in bytes; 0 means no limit, or unknown.

    Attributes:
        total: Usage of all tenants together.
        accounts: Usage by tenant.
        holders: Sessions that hold blocks.
        leases: Blocks that are leased.
        used_memory: Memory that Redis uses.
        maxmemory: Memory that Redis may use.
        machine_memory: Memory of the machine of Redis.
        policy: Redis's `maxmemory-policy`: what it deletes by itself when it is full.
        session_bytes: Bytes of the sessions in the same Redis.
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
    """One step of a reconciliation.

    Attributes:
        lost: Registered blocks whose bytes were gone.
        cursor: Where the next step goes on.
    """

    lost: int
    cursor: tuple[int, int]


class BlockStore(Protocol):
    """Facts about KV blocks, by name. All methods may be called at the same time, and repeated as they are.

    Every one raises `Unavailable` (reason `kv_store`) when the store cannot be reached or does not answer,
    and those that add something `StoreFull` when there is no memory for it.
    """

    async def find_blocks(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """Counts the leading blocks that are stored, and leases them.

        A find does not count as use of the blocks: a leader that uses them commits them again after the turn.

        Args:
            names: The blocks of a sequence, from its first one on.
            lease_ms: How long the blocks found must not be evicted; 0: no lease.
            parts: With a number, unregistered blocks of that many parts count as well, since the group that
                wrote them may have died before its commit. Their bytes are not in the sum.
        """
        ...

    async def register_blocks(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        """Verifies that blocks have all their parts, registers those that are new, and counts all as used."""
        ...

    async def hold_blocks(self, tenant: str, session_id: str, names: Sequence[bytes]) -> None:
        """Makes a session hold exactly these blocks. The sweep checks soon whether the session still exists.

        Blocks that it held before and that no other session holds are kept by age alone from then on, and are
        deleted with the session at the latest.
        """
        ...

    async def evict_blocks(
        self, num_bytes: int, *, tenant: str = "", keep: Sequence[bytes] = ()
    ) -> FreedBlocks:
        """Deletes blocks by score, of one tenant or of all, until `num_bytes` are free.

        One call has a bound and may free less. It frees nothing when all blocks left are leased or in `keep`.
        """
        ...

    async def forget_blocks(self, names: Sequence[bytes]) -> FreedBlocks:
        """Deletes these blocks, also those that sessions hold."""
        ...

    async def release_session(self, tenant: str, session_id: str) -> list[bytes]:
        """Ends the holding of a session, and deletes the blocks that no other session holds or held.

        Returns:
            The names of the deleted blocks.
        """
        ...

    async def usage_of(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """Returns what each of these sessions has stored, shared blocks included."""
        ...

    async def read_totals(self) -> BlockTotals:
        """Returns counts, and the accounts of all tenants."""
        ...

    async def become_sweeper(self, owner: str, for_ms: int) -> bool:
        """Reserves the sweep for `for_ms`; returns False if another replica has it."""
        ...

    async def due_holders(self, limit: int) -> list[tuple[str, str]]:
        """Returns up to `limit` sessions that hold blocks and are due to be checked, as tenant and id."""
        ...

    async def check_holders(
        self, fates: Mapping[tuple[str, str], SessionFate], *, recheck_ms: int, grace_ms: int
    ) -> int:
        """Releases sessions that have no record: those that were deleted, and others after `grace_ms`.

        The other sessions are counted anew, and are due again after `recheck_ms`.

        Returns:
            How many blocks were deleted.
        """
        ...

    async def reconcile_step(self, cursor: tuple[int, int], *, orphan_ms: int) -> ReconcileStep:
        """Compares some facts with bytes.

        Facts without bytes are removed, bytes without facts expire in `orphan_ms`. The cursor begins at (0,
        0). Each of its two numbers returns to 0 when all keys of its kind were seen.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
