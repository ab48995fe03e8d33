"""Erases the KV blocks of a tenant."""

from collections.abc import Callable

from services.kvstate.blocks.store import BlockStore, BlockUsage, FreedBlocks

EVERYTHING = 2**62  # bytes


class TenantBlocks:
    """Erases.

    Args:
        store: Of the blocks.
        on_evicted: Counts what was deleted, by reason.
    """

    def __init__(self, store: BlockStore, on_evicted: Callable[[str, int], None]) -> None:
        self._store = store
        self._on_evicted = on_evicted

    async def erase_some(self, tenant: str) -> tuple[FreedBlocks, bool]:
        """Deletes blocks of a tenant, as many as one step may; True if some are left.

        Blocks that a group reads at this moment are leased, and stay until it has them.
        """
        freed = await self._store.evict_blocks(EVERYTHING, tenant=tenant)
        self._on_evicted("tenant_erased", freed.blocks)
        totals = await self._store.read_totals()
        return freed, totals.accounts.get(tenant, BlockUsage()).blocks > 0
