"""The store of facts about KV blocks on Redis: each call runs a script."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.kvstate.blocks import scripts
from services.kvstate.blocks.store import (
    BlockTotals,
    BlockUsage,
    FoundBlocks,
    FreedBlocks,
    ReconcileStep,
    RegisteredBlocks,
    WrittenBlocks,
)
from services.kvstate.domain import block_eviction, keys
from services.kvstate.redis.link import RedisLink, ScriptCall
from services.kvstate.sessions.store import SessionFate
from shared.kv_hash import PREFIX_PATTERN, data_key, name_of
from shared.telemetry.histograms import TokenHistogram

_KEYS = (
    keys.META,
    keys.ORDER,
    keys.LEASES,
    keys.REFS,
    keys.HOLDERS,
    keys.ACCOUNTS,
)
_VALUES = (data_key(b""), keys.TENANT_ORDER_PREFIX)
ACCOUNT_KEEP_MS = 86_400_000  # how long the account of a tenant without blocks is kept
NAMES_PER_SCRIPT = 1024  # Redis answers no other client while a script runs
EVICTED_PER_SCRIPT = 128
BLOCKS_PER_SCRIPT = 4096  # blocks that an eviction examines, leased ones included
SCANNED_PER_STEP = 256


class RedisBlockStore:
    """Implements `BlockStore`.

    Args:
        data_ttl_s: How long the bytes of registered blocks live after their last commit.
    """

    def __init__(self, link: RedisLink, *, data_ttl_s: float) -> None:
        self._link = link
        self._data_ttl_ms = int(data_ttl_s * 1000)

    @property
    def exchanges(self) -> TokenHistogram:
        """Seconds that Redis took to answer."""
        return self._link.exchanges

    async def find_blocks(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        """See `BlockStore.find_blocks`."""
        count = num_bytes = 0
        for first in range(0, len(names), NAMES_PER_SCRIPT):
            chunk = names[first : first + NAMES_PER_SCRIPT]
            found, size = await self._one(scripts.FIND, [b"".join(chunk), lease_ms, parts])
            count, num_bytes = count + found, num_bytes + size
            if found < len(chunk):
                break
        return FoundBlocks(count, num_bytes)

    async def register_blocks(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        """See `BlockStore.register_blocks`."""
        calls: list[ScriptCall] = []
        owners: list[int] = []
        for index, entry in enumerate(written):
            lift = entry.priority * block_eviction.PRIORITY_MS
            for first in range(0, max(1, len(entry.names)), NAMES_PER_SCRIPT):
                packed = b"".join(entry.names[first : first + NAMES_PER_SCRIPT])
                values = [
                    packed,
                    entry.parts,
                    entry.tenant,
                    lift,
                    block_eviction.DEPTH_MS,
                    first,
                    self._data_ttl_ms,
                ]
                calls.append(_call(values))
                owners.append(index)
        results = [RegisteredBlocks([], [], 0, 0) for _ in written]
        answers = await self._link.run_script(scripts.REGISTER, calls) if calls else []
        for index, (sizes, fresh, tenant_bytes, total_bytes) in zip(owners, answers, strict=True):
            before = results[index]
            results[index] = RegisteredBlocks(
                before.sizes + sizes, before.fresh + [one == 1 for one in fresh], tenant_bytes, total_bytes
            )
        return results

    async def hold_blocks(self, tenant: str, session_id: str, names: Sequence[bytes]) -> None:
        """See `BlockStore.hold_blocks`."""
        values = [keys.member(tenant, session_id), 0, b"".join(names)]
        await self._one(scripts.HOLD, values, keys.held(tenant, session_id))

    async def evict_blocks(
        self, num_bytes: int, *, tenant: str = "", keep: Sequence[bytes] = ()
    ) -> FreedBlocks:
        """See `BlockStore.evict_blocks`."""
        order = keys.TENANT_ORDER_PREFIX + tenant if tenant else keys.ORDER
        values = [num_bytes, EVICTED_PER_SCRIPT, BLOCKS_PER_SCRIPT, b"".join(keep)]
        return FreedBlocks(*await self._one(scripts.EVICT, values, order))

    async def forget_blocks(self, names: Sequence[bytes]) -> FreedBlocks:
        """See `BlockStore.forget_blocks`."""
        return FreedBlocks(*await self._one(scripts.FORGET, [b"".join(names)]))

    async def release_session(self, tenant: str, session_id: str) -> list[bytes]:
        """See `BlockStore.release_session`."""
        values = [keys.member(tenant, session_id)]
        return list(await self._one(scripts.RELEASE, values, keys.held(tenant, session_id)))

    async def usage_of(self, tenant: str, session_ids: Sequence[str]) -> list[BlockUsage]:
        """See `BlockStore.usage_of`."""
        calls = [
            _call([], *(keys.held(tenant, name) for name in session_ids[first : first + 16]))
            for first in range(0, len(session_ids), 16)
        ]
        answers = await self._link.run_script(scripts.USAGE, calls) if calls else []
        return [
            BlockUsage(size, blocks, float(seconds)) for answer in answers for size, blocks, seconds in answer
        ]

    async def read_totals(self) -> BlockTotals:
        """See `BlockStore.read_totals`; asks also while the circuit is open, and may close it."""
        calls = [_call([ACCOUNT_KEEP_MS])]
        ((holders, leases, *rows),) = await self._link.run_script(scripts.TOTALS, calls, probe=True)
        memory, session_bytes = await self._link.pipeline(
            [("INFO", "memory"), ("HGET", keys.SIZES_PREFIX, "")], probe=True
        )
        accounts = {who.decode(): BlockUsage(size, blocks, float(sum_)) for who, size, blocks, sum_ in rows}
        return BlockTotals(
            total=accounts.pop("", BlockUsage()),
            accounts=accounts,
            holders=holders,
            leases=leases,
            used_memory=int(memory.get("used_memory", 0)),
            maxmemory=int(memory.get("maxmemory", 0)),
            machine_memory=int(memory.get("total_system_memory", 0)),
            policy=str(memory.get("maxmemory_policy", "noeviction")),
            session_bytes=int(session_bytes or 0),
        )

    async def become_sweeper(self, owner: str, for_ms: int) -> bool:
        """See `BlockStore.become_sweeper`."""
        (taken,) = await self._link.pipeline([("SET", keys.SWEEPER, owner, "NX", "PX", for_ms)])
        return bool(taken)

    async def due_holders(self, limit: int) -> list[tuple[str, str]]:
        """See `BlockStore.due_holders`."""
        members = await self._one(scripts.DUE_HOLDERS, [limit])
        return [keys.split_member(member.decode()) for member in members]

    async def check_holders(
        self, fates: Mapping[tuple[str, str], SessionFate], *, recheck_ms: int, grace_ms: int
    ) -> int:
        """See `BlockStore.check_holders`."""
        values: list[Any] = [keys.HELD_PREFIX, recheck_ms, grace_ms]
        for key, fate in fates.items():
            values += (keys.member(*key), int(fate.has_record), int(fate.deleted))
        return int(await self._one(scripts.CHECK_HOLDERS, values)) if fates else 0

    async def reconcile_step(self, cursor: tuple[int, int], *, orphan_ms: int) -> ReconcileStep:
        """See `BlockStore.reconcile_step`."""
        (facts, known), (data, stored) = await self._link.pipeline(
            [
                ("HSCAN", keys.META, cursor[0], "COUNT", SCANNED_PER_STEP),
                ("SCAN", cursor[1], "MATCH", PREFIX_PATTERN, "COUNT", SCANNED_PER_STEP),
            ]
        )
        names = {*known, *(name_of(key) for key in stored)}
        lost = await self._one(scripts.RECONCILE, [b"".join(names), orphan_ms]) if names else 0
        return ReconcileStep(lost, (int(facts), int(data)))

    async def close(self) -> None:
        """See `BlockStore.close`."""
        await self._link.close()

    async def _one(self, script: str, values: Sequence[Any], *more_keys: str) -> Any:
        (answer,) = await self._link.run_script(script, [_call(values, *more_keys)])
        return answer


def _call(values: Sequence[Any], *more_keys: str) -> ScriptCall:
    return (*_KEYS, *more_keys), (*_VALUES, *values)
