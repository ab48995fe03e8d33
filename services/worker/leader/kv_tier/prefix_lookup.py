"""Looks up how much of a prompt's KV is stored, and says where the KV is likely to come from.

The memory of the host is searched first; the KV state service is asked if that does not have all.
"""

from collections.abc import Callable

import structlog

from services.worker.domain.generation.generation import Generation
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.host_kv.host_pool import HostPool
from services.worker.host_kv.pool_directory import DeadSegments, UnsafeDirectory, open_directory
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.block_ownership import BlockIndex
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.kv_tier.store_health import StoreHealth
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.errors import RyzError
from shared.messages import BlocksFound, KVSource
from shared.messages.kv.blocks import MAX_NAMES

log = structlog.get_logger(__name__)
SWEEP_S = 60.0  # between checks for segments of dead processes
REFRESH_S = 0.002  # requests of a burst share one check for new blocks


class HostLookup:
    """What of a prompt the groups of this host have in shared memory, which ranks copy (`FetchBlocks`).

    A lookup is a few reads of it, without a message. Without a directory, or with one that cannot be used, it
    finds nothing.

    Args:
        directory: The directory of the host tier. Empty if the host has no such tier.
        clock: Returns monotonic seconds.
    """

    def __init__(self, directory: str, clock: Callable[[], float]) -> None:
        self._pool: HostPool | None = None
        self._dead: DeadSegments | None = None
        self._swept = clock()
        self._refreshed = -REFRESH_S
        self._clock = clock
        if directory:
            try:
                pool_dir = open_directory(directory)
            except (UnsafeDirectory, OSError) as error:
                log.warning("no KV blocks are kept in the host's memory", why=str(error))
                return
            self._pool, self._dead = HostPool(pool_dir), DeadSegments(pool_dir, clock)

    def count(self, names: list[bytes], num_heads: int) -> int:
        """Returns how many leading blocks the host has with all heads of the model."""
        if self._pool is None or not names:
            return 0
        now = self._clock()
        if now - self._refreshed >= REFRESH_S:
            self._refreshed = now
            self._pool.refresh()
        return self._pool.count(names, num_heads)

    def revoke(self, names: list[bytes]) -> None:
        """Makes blocks of a deleted session unreadable for all groups of the host."""
        if self._pool is not None:
            self._pool.refresh()
            self._pool.revoke(names)

    def sweep(self) -> None:
        """Removes what dead processes left long ago, once a minute."""
        now = self._clock()
        if self._dead is not None and now - self._swept >= SWEEP_S:
            self._swept = now
            self._dead.sweep()

    def describe(self) -> dict[str, object] | None:
        """Returns what `ryz status` shows; None without a host tier."""
        if self._pool is None:
            return None
        self._pool.refresh()
        return {"segments": self._pool.num_segments, "bytes": self._pool.num_bytes}


class PrefixLookup:
    """Asks the KV state service, if the store is used."""

    def __init__(
        self,
        context: LeaderContext,
        options: KVOptions,
        engine: EngineState,
        index: BlockIndex,
        health: StoreHealth,
    ) -> None:
        self._options = options
        self._engine = engine
        self._index = index
        self._health = health
        self.host = HostLookup(options.kv_host_dir, context.clock)
        self._metrics = context.metrics
        self._clock = context.clock

    def names_of(self, sequence: Sequence) -> list[bytes]:
        """Returns the names of the blocks that a sequence could find."""
        return self._engine.facts.names.to_find(sequence)[: (len(sequence.tokens) - 1) // BLOCK_SIZE]

    def source_at_hand(self, generation: Generation) -> KVSource | None:
        """Returns where a prompt's KV comes from, or None if the store has to be asked."""
        scheduler = self._engine.kv_scheduler
        if not generation.choices or scheduler is None:
            return ""
        names = self.names_of(generation.choices[0].sequence)
        found = scheduler.blocks.num_found(names)
        enough = (len(names) - found) * BLOCK_SIZE < self._options.kv_fetch_min_tokens
        if enough or not scheduler.write_behind.enabled:
            return "warm" if found else "new"
        return "fetch" if self._is_on_host(generation, names, found) else None

    async def find_source(self, generation: Generation) -> KVSource:
        """Asks what of a prompt is stored, and keeps it there for as long as fetching may take.

        Returns:
            What the rule would do now. It decides again when there are blocks for the sequence.
        """
        at_hand = self.source_at_hand(generation)
        if at_hand is not None:
            return at_hand
        policy = generation.request.kv
        if policy == "recompute":
            return "recompute"
        scheduler, names = self._engine.kv_scheduler, self.names_of(generation.choices[0].sequence)
        assert scheduler is not None
        answer = await self.count_stored(names)
        here = scheduler.blocks.num_found(names)
        if scheduler is not self._engine.kv_scheduler:
            return ""
        behind, count = scheduler.write_behind, 0
        on_host = self.host.count(names, self._engine.kv_parts)
        if answer is not None:
            behind.found(names[:answer])
            count = behind.num_trusted_of(names[:answer])
            behind.unlearn(names[max(answer, here) :])
        count = max(count, behind.num_trusted_of(names[:on_host]))
        for choice in generation.choices:
            choice.sequence.stored = count
        if count <= here:
            return "warm" if here else "new"
        fetches = policy == "fetch" or self._engine.costs.fetches(
            count - here, self._clock(), scheduler.queued_tokens, scheduler.in_flight
        )
        return "fetch" if fetches else "recompute"

    def _is_on_host(self, generation: Generation, names: list[bytes], found: int) -> bool:
        """Returns whether the host has a prompt; then it is copied, which is faster than computing it."""
        if generation.request.kv == "recompute" or self._options.kv_fetch == "never":
            return False
        scheduler = self._engine.kv_scheduler
        assert scheduler is not None
        count = scheduler.write_behind.num_trusted_of(names[: self.host.count(names, self._engine.kv_parts)])
        if count <= found or (len(names) - count) * BLOCK_SIZE >= self._options.kv_fetch_min_tokens:
            return False
        self._metrics.kv_host_lookups.inc()
        scheduler.write_behind.found(names[:count])  # by the group that wrote them; the commit checks it
        for choice in generation.choices:
            choice.sequence.stored = count
            choice.sequence.always_fetch = True
        return True

    async def count_stored(self, names: list[bytes]) -> int | None:
        """Returns how many leading blocks are stored; None if the service does not answer."""
        try:
            found = await self.find_blocks(names[:MAX_NAMES])
        except RyzError as error:
            self._metrics.kv_lookups.labels("failed").inc()
            self._health.record_failure(self._health.lookups, error.message)
            return None
        count = min(found.count, len(names))
        self._metrics.kv_lookups.labels("found" if count else "unknown").inc()
        self._health.record_success(self._health.lookups)
        return count

    async def find_blocks(self, names: list[bytes]) -> BlocksFound:
        """Asks the KV state service for blocks, which it keeps for twice the time of a fetch."""
        options, parts = self._options, self._engine.kv_parts
        lease_ms = round(2000 * options.kv_fetch_timeout_s)
        return await self._index.find(
            names, lease_ms=lease_ms, timeout_s=options.kv_lookup_timeout_s, parts=parts
        )
