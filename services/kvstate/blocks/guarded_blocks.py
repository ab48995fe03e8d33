"""A store of KV blocks' facts behind a guard of its own: slow block calls must not close sessions off."""

from collections.abc import Mapping, Sequence

from services.kvstate.blocks.block_store import (
    BlockStore,
    BlockTotals,
    BlockUsage,
    FoundBlocks,
    FreedBlocks,
    ReconcileStep,
    RegisteredBlocks,
    WrittenBlocks,
)
from services.kvstate.redis.store_guard import Guard
from services.kvstate.sessions.session_store import SessionFate


class GuardedBlocks:
    """Implements `BlockStore` on top of another one."""

    def __init__(self, store: BlockStore, guard: Guard) -> None:
        self.circuit = guard.circuit
        self._store = store
        self._guard = guard

    async def find(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """See `BlockStore.find`."""
        return await self._guard.call(lambda: self._store.find(names, lease_ms, parts))

    async def register(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        """See `BlockStore.register`."""
        return await self._guard.call(lambda: self._store.register(written))

    async def hold(self, tenant: str, session_id: str, names: Sequence[bytes]) -> None:
        """See `BlockStore.hold`."""
        await self._guard.call(lambda: self._store.hold(tenant, session_id, names))

    async def evict(self, num_bytes: int, *, tenant: str = "", keep: Sequence[bytes] = ()) -> FreedBlocks:
        """See `BlockStore.evict`."""
        return await self._guard.call(lambda: self._store.evict(num_bytes, tenant=tenant, keep=keep))

    async def forget(self, names: Sequence[bytes]) -> FreedBlocks:
        """See `BlockStore.forget`."""
        return await self._guard.call(lambda: self._store.forget(names))

    async def release(self, tenant: str, session_id: str) -> list[bytes]:
        """See `BlockStore.release`."""
        return await self._guard.call(lambda: self._store.release(tenant, session_id))

    async def usage(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """See `BlockStore.usage`."""
        return await self._guard.call(lambda: self._store.usage(tenant, session_ids))

    async def totals(self) -> BlockTotals:
        """See `BlockStore.totals`; asks the store also while the circuit is open, and may close it."""
        return await self._guard.probe(self._store.totals())

    async def become_sweeper(self, owner: str, for_ms: int) -> bool:
        """See `BlockStore.become_sweeper`."""
        return await self._guard.call(lambda: self._store.become_sweeper(owner, for_ms))

    async def due_holders(self, limit: int) -> list[tuple[str, str]]:
        """See `BlockStore.due_holders`."""
        return await self._guard.call(lambda: self._store.due_holders(limit))

    async def check_holders(
        self, fates: Mapping[tuple[str, str], SessionFate], *, recheck_ms: int, grace_ms: int
    ) -> int:
        """See `BlockStore.check_holders`."""
        return await self._guard.call(
            lambda: self._store.check_holders(fates, recheck_ms=recheck_ms, grace_ms=grace_ms)
        )

    async def reconcile(self, cursor: tuple[int, int], *, orphan_ms: int) -> ReconcileStep:
        """See `BlockStore.reconcile`."""
        return await self._guard.call(lambda: self._store.reconcile(cursor, orphan_ms=orphan_ms))

    async def close(self) -> None:
        """See `BlockStore.close`."""
        await self._store.close()
