"""The KV tier: finds and commits KV blocks within quotas and limits.

It applies the rules of `block_eviction.py` to a block store.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from services.kvstate.blocks.commit import BlockCommit
from services.kvstate.blocks.store import (
    BlockStore,
    BlockTotals,
    BlockUsage,
    FoundBlocks,
    RegisteredBlocks,
    WrittenBlocks,
)
from services.kvstate.domain.block_eviction import (
    BlockLimits,
    WaterMarks,
    cut,
    fitting,
    kv_marks,
    kv_memory,
    limit_bytes,
)
from services.kvstate.domain.session_quota import LimitsOf, no_own_limits
from services.kvstate.redis.store_errors import StoreFull
from services.kvstate.sessions.store import SessionFate
from shared.errors import Unavailable
from shared.kv_hash import split
from shared.messages import BlocksCommitted, HeldBlocks

log = structlog.get_logger(__name__)
AskFates = Callable[[Sequence[tuple[str, str]]], Awaitable[list[SessionFate]]]  # as `SessionStore.fates`
_STEPS = 64  # evictions in one call; the sweep does the rest
_ROOM_SHARE = 0.1  # of the stored bytes is evicted when Redis has no memory left


@dataclass(frozen=True, kw_only=True)
class TierLimits(BlockLimits):
    """Limits of the blocks of all tenants and of each.

    Attributes:
        pause_ms: How long leaders are asked to write nothing when there is no room: as long as a sweep
            takes to come.
        with_sessions: Whether the same Redis has the sessions.
    """

    pause_ms: int = 1000
    with_sessions: bool = True


class BlockTier:
    """Decides which blocks stay.

    Args:
        on_evicted: Called with the reason and the number of blocks deleted.
        fates: Asks the session store about sessions.
        limits_of: Of tenants that have some of their own.

    Attributes:
        totals: The totals that were read last.
        full: Whether nothing could be freed for new blocks.
    """

    def __init__(
        self,
        store: BlockStore,
        limits: TierLimits,
        on_evicted: Callable[[str, int], None],
        fates: AskFates,
        limits_of: LimitsOf = no_own_limits,
    ) -> None:
        self.totals = BlockTotals(BlockUsage(), {})
        self.full = False
        self._store = store
        self._limits = limits
        self._on_evicted = on_evicted
        self._fates = fates
        self._limits_of = limits_of

    @property
    def marks(self) -> WaterMarks:
        """The marks for the bytes of all blocks, from the memory that Redis last reported."""
        seen = self.totals
        limit = limit_bytes(
            self._limits.kv_max_bytes, self._limits.kv_redis_share, seen.maxmemory, seen.machine_memory
        )
        return WaterMarks(limit)

    async def find_blocks(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """See `BlockStore.find_blocks`. A full store has no memory for leases: it finds without."""
        try:
            return await self._store.find_blocks(names, lease_ms, parts)
        except StoreFull:
            return await self._store.find_blocks(names, 0, parts)

    async def commit_blocks(self, held: Sequence[HeldBlocks]) -> BlocksCommitted:
        """Registers blocks and lets sessions hold them, each entry for itself.

        Over the quota of a tenant its oldest blocks are evicted first, then the new ones. Over the quota of a
        session the tail of its sequence is deleted. When Redis is full, older blocks are evicted, and the
        commit is tried once more.
        """
        try:
            done = await self._commit(held)
        except StoreFull:
            evicted = await self.make_room()
            try:
                done = (
                    await self._commit(held) if evicted else BlockCommit([], pause_ms=self._limits.pause_ms)
                )
            except StoreFull:
                done = BlockCommit([], pause_ms=self._limits.pause_ms)
            done.evicted += evicted
        self.full = done.pause_ms > 0
        stored = len(set(done.all_names) - done.gone)
        return BlocksCommitted(
            stored=stored, evicted=done.evicted, over_quota=sorted(done.over_quota), pause_ms=done.pause_ms
        )

    async def make_room(self) -> int:
        """Makes room when Redis has no memory left: down to the low mark, or a tenth of the stored bytes.

        Returns:
            How many blocks were evicted; 0 also while the store is away.
        """
        try:
            totals = await self.refresh_totals()
            over = WaterMarks(totals.maxmemory).excess(totals.used_memory)
            return await self._evict("memory", max(over, int(_ROOM_SHARE * totals.total.num_bytes) + 1))
        except Unavailable as error:
            log.warning("no room was made", error=error.message)
            return 0

    async def make_room_for(self, tenants: Iterable[str]) -> int:
        """Makes room when Redis has no memory left for sessions of these tenants.

        If blocks take more than their share of Redis, the oldest ones are evicted. If not, only blocks of
        these tenants are, so that the sessions of a tenant never cost another tenant its blocks.

        Returns:
            How many blocks were evicted.
        """
        if not self._limits.with_sessions:
            return 0
        try:
            totals = await self.refresh_totals()
            marks = kv_marks(totals.maxmemory, with_sessions=True)
            used = kv_memory(totals.used_memory, totals.session_bytes)
            evicted = await self._evict("memory", used - int(marks.low * marks.limit))
            over = totals.used_memory - int(marks.high * totals.maxmemory)
            for tenant in () if evicted else tenants:
                own = totals.accounts.get(tenant, BlockUsage()).num_bytes
                evicted += await self._evict("memory", max(over, int(_ROOM_SHARE * own) + 1), tenant)
        except Unavailable as error:
            log.warning("no room was made", error=error.message)
            return 0
        return evicted

    async def release_session(self, tenant: str, session_id: str) -> list[bytes]:
        """Releases the blocks of a deleted session; see `BlockStore.release_session`."""
        names = await self._store.release_session(tenant, session_id)
        self._on_evicted("session_deleted", len(names))
        return names

    async def usage_of(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """See `BlockStore.usage_of`."""
        return await self._store.usage_of(tenant, session_ids)

    async def refresh_totals(self) -> BlockTotals:
        """Reads the totals; limits that depend on the memory of Redis follow them."""
        self.totals = await self._store.read_totals()
        return self.totals

    async def keep_below(self) -> None:
        """Evicts blocks above the high mark, of their own bytes or of the memory they take in Redis."""
        seen = self.totals
        used = kv_memory(seen.used_memory, seen.session_bytes)
        marks = kv_marks(seen.maxmemory, with_sessions=self._limits.with_sessions)
        excess = max(self.marks.excess(seen.total.num_bytes), marks.excess(used))
        evicted = await self._evict("age", excess)
        self.full = excess > 0 and not evicted

    async def _commit(self, held: Sequence[HeldBlocks]) -> BlockCommit:
        entries = [
            WrittenBlocks(
                one.tenant, one.session_id, list(dict.fromkeys(split(one.names))), one.parts, one.priority
            )
            for one in held
        ]
        entries = await self._without_deleted(entries)
        registered = await self._store.register_blocks(entries)
        commit = BlockCommit(entries)
        for entry, result in zip(entries, registered, strict=True):
            rows = list(zip(entry.names, result.sizes, result.fresh, strict=True))
            commit.names.append([name for name, size, _ in rows if size >= 0])
            commit.sizes.append([size for _, size, _ in rows if size >= 0])
            commit.fresh.append([new for _, size, new in rows if size >= 0])
        await self._fit_sessions(commit)
        await self._fit_tenants(commit, registered)
        await self._fit_all(commit, max((one.total_bytes for one in registered), default=0))
        for entry, names in zip(entries, commit.names, strict=True):
            if entry.session_id:
                left = [name for name in names if name not in commit.gone]
                await self._store.hold_blocks(entry.tenant, entry.session_id, left)
        return commit

    async def _without_deleted(self, entries: list[WrittenBlocks]) -> list[WrittenBlocks]:
        """Empties the entries whose session was deleted.

        The sweep releases the blocks of sessions that are deleted later, or while the session store is away.
        """
        keys = list({(one.tenant, one.session_id): None for one in entries if one.session_id})
        try:
            fates = dict(zip(keys, await self._fates(keys), strict=True)) if keys else {}
        except Unavailable as error:
            log.debug("not known which sessions are deleted", error=error.message)
            fates = {}
        gone = {key for key, fate in fates.items() if fate.deleted}
        return [
            one._replace(session_id="", names=[]) if (one.tenant, one.session_id) in gone else one
            for one in entries
        ]

    async def _fit_sessions(self, commit: BlockCommit) -> None:
        for index, entry in enumerate(commit.entries):
            fits = fitting(commit.sizes[index], self._limits.kv_session_bytes)
            if entry.session_id and fits < len(commit.names[index]):
                await self._drop(commit, index, range(fits, len(commit.names[index])), "session_quota")

    async def _fit_tenants(self, commit: BlockCommit, registered: Sequence[RegisteredBlocks]) -> None:
        tenants = {entry.tenant: result for entry, result in zip(commit.entries, registered, strict=True)}
        for tenant, result in tenants.items():
            own = self._limits_of(tenant)
            quota = (own.kv_bytes if own is not None else 0) or self._limits.kv_tenant_bytes
            if not quota or result.tenant_bytes <= quota:
                continue
            used = (await self.refresh_totals()).accounts.get(tenant, BlockUsage()).num_bytes
            if used <= quota:
                continue
            commit.evicted += await self._evict("tenant_quota", used - quota, tenant, commit.all_names)
            excess = (await self.refresh_totals()).accounts.get(tenant, BlockUsage()).num_bytes - quota
            await self._cut(commit, excess, "tenant_quota", tenant)

    async def _fit_all(self, commit: BlockCommit, total_bytes: int) -> None:
        marks = self.marks
        if not marks.above(total_bytes):
            return
        total_bytes = (await self.refresh_totals()).total.num_bytes
        commit.evicted += await self._evict("age", marks.excess(total_bytes), keep=commit.all_names)
        excess = (await self.refresh_totals()).total.num_bytes - marks.limit
        if excess > 0:
            commit.pause_ms = self._limits.pause_ms
            await self._cut(commit, excess, "age")

    async def _cut(self, commit: BlockCommit, excess: int, reason: str, tenant: str = "") -> None:
        """Deletes new blocks of the call, the last entry's first, until `excess` bytes are free."""
        for entry in range(len(commit.entries) - 1, -1, -1):
            if excess > 0 and commit.entries[entry].tenant == (tenant or commit.entries[entry].tenant):
                indices = cut(commit.sizes[entry], commit.fresh[entry], excess)
                excess -= sum(commit.sizes[entry][at] for at in indices)
                await self._drop(commit, entry, indices, reason)

    async def _drop(self, commit: BlockCommit, entry: int, positions: Iterable[int], reason: str) -> None:
        """Takes blocks out of an entry, and deletes those that this commit registered."""
        gone = set(positions)
        names, fresh = commit.names[entry], commit.fresh[entry]
        new = [names[at] for at in sorted(gone) if fresh[at]]
        if new:
            await self._store.forget_blocks(new)
            commit.gone.update(new)
            self._on_evicted(reason, len(new))
        if gone and reason.endswith("quota"):
            commit.over_quota.add(entry)
        stay = [at for at in range(len(names)) if at not in gone]
        commit.names[entry] = [names[at] for at in stay]
        commit.sizes[entry] = [commit.sizes[entry][at] for at in stay]
        commit.fresh[entry] = [fresh[at] for at in stay]

    async def _evict(self, reason: str, num_bytes: int, tenant: str = "", keep: Sequence[bytes] = ()) -> int:
        blocks = 0
        for _ in range(_STEPS):
            if num_bytes <= 0:
                break
            freed = await self._store.evict_blocks(num_bytes, tenant=tenant, keep=keep)
            if not freed.blocks:
                break
            blocks, num_bytes = blocks + freed.blocks, num_bytes - freed.num_bytes
        self._on_evicted(reason, blocks)
        return blocks
