"""Facts about KV blocks in memory: for tests, and as the plain form of what the Lua scripts do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.kvstate.blocks.store import (
    BlockTotals,
    BlockUsage,
    FoundBlocks,
    FreedBlocks,
    ReconcileStep,
    RegisteredBlocks,
    WrittenBlocks,
)
from services.kvstate.domain import block_eviction
from services.kvstate.sessions.store import SessionFate

SessionKey = tuple[str, str]  # tenant, session id
_NOTHING = FreedBlocks()


@dataclass(slots=True)
class _Block:
    tenant: str
    num_bytes: int
    parts: int
    score: float
    lease_until_ms: float = 0.0


@dataclass(slots=True)
class _Held:
    names: list[bytes] = field(default_factory=list)
    former: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    byte_seconds: float = 0.0
    at_ms: float = 0.0
    committed_ms: float = 0.0
    due_ms: float = 0.0


class MemoryBlockStore:
    """Implements `BlockStore`.

    Args:
        clock: Returns seconds.

    Attributes:
        data: The bytes that ranks would write, by name and part.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.data: dict[bytes, dict[bytes, bytes]] = {}
        self._clock = clock
        self._blocks: dict[bytes, _Block] = {}
        self._held: dict[SessionKey, _Held] = {}
        self._accounts: dict[str, tuple[BlockUsage, float]] = {}
        self._sweeping_until_ms = 0.0

    @property
    def _now_ms(self) -> float:
        return self._clock() * 1000

    async def find_blocks(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """See `BlockStore.find_blocks`."""
        count = num_bytes = 0
        for name in names:
            if name in self._blocks and name in self.data:
                num_bytes += self._blocks[name].num_bytes
            elif name in self._blocks or not parts or len(self.data.get(name, {})) != parts:
                break
            count += 1
        if lease_ms:
            for block in (self._blocks[name] for name in names[:count] if name in self._blocks):
                block.lease_until_ms = max(block.lease_until_ms, self._now_ms + lease_ms)
        return FoundBlocks(count, num_bytes)

    async def register_blocks(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        """See `BlockStore.register_blocks`."""
        return [self._register(entry) for entry in written]

    def _register(self, entry: WrittenBlocks) -> RegisteredBlocks:
        sizes, fresh = [], []
        for depth, name in enumerate(entry.names):
            parts = self.data.get(name, {})
            there = len(parts) == entry.parts
            if not there:
                self._unregister(name)
            fresh.append(there and name not in self._blocks)
            if fresh[-1]:
                size = sum(map(len, parts.values()))
                score = block_eviction.score(self._now_ms, entry.priority, depth)
                self._blocks[name] = _Block(entry.tenant, size, entry.parts, score)
                self._note(entry.tenant, size, 1)
            if there:
                self._touch(name, entry.priority, depth)
            sizes.append(self._blocks[name].num_bytes if there else -1)
        return RegisteredBlocks(
            sizes, fresh, self._account(entry.tenant).num_bytes, self._account("").num_bytes
        )

    async def hold_blocks(self, tenant: str, session_id: str, names: Sequence[bytes]) -> None:
        """See `BlockStore.hold_blocks`."""
        held = self._held.setdefault((tenant, session_id), _Held(at_ms=self._now_ms))
        before = held.names + held.former
        self._settle(held)
        held.names = list(dict.fromkeys(names))
        held.former = [name for name in before if name not in held.names and name in self._blocks]
        held.num_bytes = self._count(held.names).num_bytes
        held.committed_ms = self._now_ms

    async def evict_blocks(
        self, num_bytes: int, *, tenant: str = "", keep: Sequence[bytes] = ()
    ) -> FreedBlocks:
        """See `BlockStore.evict_blocks`."""
        free = [
            (block.score, name)
            for name, block in self._blocks.items()
            if block.tenant == (tenant or block.tenant)
            and block.lease_until_ms <= self._now_ms
            and name not in keep
        ]
        freed = FreedBlocks()
        for _, name in sorted(free):
            if freed.num_bytes >= num_bytes:
                break
            freed = self._forget([name], freed)
        return freed

    async def forget_blocks(self, names: Sequence[bytes]) -> FreedBlocks:
        """See `BlockStore.forget_blocks`."""
        return self._forget(names)

    async def release_session(self, tenant: str, session_id: str) -> list[bytes]:
        """See `BlockStore.release_session`."""
        held = self._held.pop((tenant, session_id), None)
        if held is None:
            return []
        others = {name for other in self._held.values() for name in other.names + other.former}
        gone = [name for name in held.names + held.former if name not in others]
        self._forget(gone)
        return gone

    async def usage_of(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """See `BlockStore.usage_of`."""
        found = []
        for session_id in session_ids:
            held = self._held.get((tenant, session_id), _Held())
            self._settle(held)
            stored = self._count(held.names)
            found.append(BlockUsage(stored.num_bytes, stored.blocks, held.byte_seconds))
        return found

    async def read_totals(self) -> BlockTotals:
        """See `BlockStore.read_totals`."""
        leased = sum(block.lease_until_ms > self._now_ms for block in self._blocks.values())
        accounts = {who: self._account(who) for who in self._accounts if who}
        return BlockTotals(self._account(""), accounts, holders=len(self._held), leases=leased)

    async def become_sweeper(self, owner: str, for_ms: int) -> bool:
        """See `BlockStore.become_sweeper`."""
        if self._sweeping_until_ms > self._now_ms:
            return False
        self._sweeping_until_ms = self._now_ms + for_ms
        return True

    async def due_holders(self, limit: int) -> list[SessionKey]:
        """See `BlockStore.due_holders`."""
        due = sorted((held.due_ms, key) for key, held in self._held.items())
        return [key for due_ms, key in due if due_ms <= self._now_ms][:limit]

    async def check_holders(
        self, fates: Mapping[SessionKey, SessionFate], *, recheck_ms: int, grace_ms: int
    ) -> int:
        """See `BlockStore.check_holders`."""
        blocks = 0
        for key, fate in fates.items():
            held = self._held.get(key)
            if held is None:
                continue
            idle_ms = self._now_ms - held.committed_ms
            # during its first turn a session has no record yet
            if not fate.has_record and (fate.deleted or idle_ms >= grace_ms):
                blocks += len(await self.release_session(*key))
            else:
                held.due_ms = self._now_ms + recheck_ms
                self._settle(held)
                held.num_bytes = self._count(held.names).num_bytes
        return blocks

    async def reconcile_step(self, cursor: tuple[int, int], *, orphan_ms: int) -> ReconcileStep:
        """See `BlockStore.reconcile_step`; bytes never expire here."""
        lost = [name for name, block in self._blocks.items() if len(self.data.get(name, ())) != block.parts]
        for name in lost:
            self._unregister(name)
        return ReconcileStep(len(lost), (0, 0))

    async def close(self) -> None:
        """See `BlockStore.close`."""

    def _touch(self, name: bytes, priority: int, depth: int) -> None:
        block = self._blocks[name]
        block.score = max(block.score, block_eviction.score(self._now_ms, priority, depth))

    def _forget(self, names: Iterable[bytes], freed: FreedBlocks = _NOTHING) -> FreedBlocks:
        for name in names:
            self.data.pop(name, None)
            block = self._unregister(name)
            if block:
                freed = FreedBlocks(freed.blocks + 1, freed.num_bytes + block.num_bytes)
        return freed

    def _unregister(self, name: bytes) -> _Block | None:
        block = self._blocks.pop(name, None)
        if block:
            self._note(block.tenant, -block.num_bytes, -1)
        return block

    def _count(self, names: Sequence[bytes]) -> FreedBlocks:
        sizes = [self._blocks[name].num_bytes for name in names if name in self._blocks]
        return FreedBlocks(len(sizes), sum(sizes))

    def _settle(self, held: _Held) -> None:
        held.byte_seconds += held.num_bytes * (self._now_ms - held.at_ms) / 1000
        held.at_ms = self._now_ms

    def _account(self, who: str) -> BlockUsage:
        account, at_ms = self._accounts.get(who, (BlockUsage(), self._now_ms))
        seconds = account.num_bytes * (self._now_ms - at_ms) / 1000
        return account._replace(byte_seconds=account.byte_seconds + seconds)

    def _note(self, tenant: str, num_bytes: int, blocks: int) -> None:
        for who in (tenant, ""):
            now = self._account(who)
            changed = BlockUsage(now.num_bytes + num_bytes, now.blocks + blocks, now.byte_seconds)
            self._accounts[who] = changed, self._now_ms
