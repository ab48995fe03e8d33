"""The leader's side of the KV store: fetching, writing behind, and committing what sessions hold.

The store is an optimisation. Whatever it does, a request waits for it within a bound and is then computed;
after a few failures it is not asked until a probe succeeds (`store_health.py`). Which blocks go where is
decided in `domain/scheduling/`, the ranks move the bytes.
"""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress

from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.generation.generation import Generation
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.block_ownership import BlockIndex, BlockOwnership
from services.worker.leader.kv_tier.fetch_orders import FetchOrders
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.kv_tier.prefix_lookup import PrefixLookup
from services.worker.leader.kv_tier.store_health import StoreHealth
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import StoreResult
from shared import kv_hash
from shared.codec import unpack_tokens
from shared.errors import RyzError
from shared.messages import KVRates, SessionRecord

WRITTEN_POLL_S = 0.01


class KVTier:
    """The KV store as the leader uses it.

    Attributes:
        health: Whether the store is used.
        ownership: Which stored blocks belong to which session.
    """

    def __init__(
        self, context: LeaderContext, options: KVOptions, engine: EngineState, index: BlockIndex
    ) -> None:
        self._options = options
        self._metrics = context.metrics
        self._clock = context.clock
        self._engine = engine
        self.health = StoreHealth(context, options.circuit, writes=options.kv_write)
        self.ownership = BlockOwnership(
            context, index, timeout_s=options.commit_timeout_s, pause=self.health.pause_writes
        )
        self.prefixes = PrefixLookup(context, options, engine, index, self.health)
        self._orders = FetchOrders(context, engine, self.health, options.kv_fetch_timeout_s)
        engine.engine.watch_store(self._on_stored)

    @property
    def usable(self) -> bool:
        """Whether the store is read and written at present."""
        behind = self.write_behind
        return behind is not None and behind.enabled

    @property
    def away(self) -> bool:
        """Whether there is a store that is not used because it failed."""
        return self._engine.kv_scheduler is not None and self.health.away

    @property
    def write_behind(self) -> WriteBehind | None:
        """Of the running engine; None while there is no store."""
        scheduler = self._engine.kv_scheduler
        return scheduler.write_behind if scheduler is not None else None

    def open_store(self) -> None:
        """Begins with an engine that was started."""
        if self._engine.kv_scheduler is not None:
            self.ownership.open_store(self._engine.kv_parts)
            self.health.control(self._engine.kv_scheduler.write_behind)

    def close_store(self) -> None:
        """Ends with an engine that is down."""
        self.health.control(None)
        self.ownership.close_store()
        self._orders.close_store()

    def begin_generation(self, generation: Generation) -> None:
        """Follows the blocks of a generation that goes to the scheduler.

        Blocks that it shares are written, too, if the store is not known to have them.
        """
        scheduler = self._engine.kv_scheduler
        if scheduler is not None:
            self.ownership.begin_generation(generation)
            names = self.prefixes.names_of(generation.choices[0].sequence)
            scheduler.write_behind.add(names[: scheduler.blocks.num_found(names)])

    async def fetch_blocks(self, names: list[bytes]) -> int:
        """Fetches a sequence's blocks into the cache; returns how many came."""
        scheduler = self._engine.kv_scheduler
        if scheduler is None or not scheduler.write_behind.enabled or not names:
            return 0
        count = await self.prefixes.count_stored(names) or 0
        count = scheduler.write_behind.num_trusted_of(names[:count])
        if scheduler is not self._engine.kv_scheduler or scheduler.blocks.num_found(names) >= count:
            return 0
        return await self._orders.fetch_alone(scheduler, names[:count])

    async def keep_sessions(self, sessions: Iterable[SessionRecord]) -> None:
        """Writes the blocks of sessions that are here and not in the store, so that other groups find them.

        All tokens are hashed for it; the event loop goes on between the sessions.
        """
        for record in sessions:
            scheduler = self._engine.kv_scheduler
            if scheduler is None or not scheduler.write_behind.enabled:
                return
            tokens = unpack_tokens(record.token_ids)
            names = self._engine.facts.names.of_tokens(tokens, record.tenant, record.adapter)
            names = names[: scheduler.blocks.num_found(names)]
            if scheduler.write_behind.num_known_of(names) < len(names):
                scheduler.write_behind.add(names)
                self.ownership.keep_session(record, names)
                self._engine.work.set()
            await asyncio.sleep(0)

    async def wait_written(self, timeout_s: float) -> bool:
        """Returns whether all blocks that wait now are written in that time, or lost."""
        behind = self.write_behind
        if behind is None:
            return True
        behind.hurries = True
        try:
            return await self._await_written(behind, self._clock() + timeout_s)
        finally:
            behind.hurries = False

    async def _await_written(self, behind: WriteBehind, deadline: float) -> bool:
        due = behind.due()
        while behind.enabled and behind is self.write_behind:
            due = [name for name in due if behind.is_due(name)]
            if not due:
                return True
            if self._clock() >= deadline:
                return False
            self._engine.work.set()
            await asyncio.sleep(WRITTEN_POLL_S)
        return not due

    def order_fetches(self, scheduler: Scheduler) -> None:
        """Gives the ranks the fetches that a plan made necessary."""
        self._orders.order_fetches(scheduler)

    def describe(self) -> dict[str, object]:
        """Returns what `ryz status` shows."""
        behind = self.write_behind
        if behind is None:
            return {"state": "off"}
        recompute, fetch, fixed = self._engine.costs.rates()
        host = self.prefixes.host.describe()
        return {
            "state": "away" if self.health.away else "used",
            "writes": behind.writes,
            "known_blocks": behind.num_known,
            "losses": self.health.losses,
            "recompute_tokens_per_s": round(recompute),
            "fetch_tokens_per_s": round(fetch),
            "fetch_ms": round(1000 * fixed, 3),
        } | ({} if host is None else {"host": host})

    def rates(self) -> KVRates:
        """Returns the speed of computing and fetching, for heartbeats."""
        recompute, fetch, fixed = self._engine.costs.rates()
        return KVRates(
            recompute_tokens_per_s=round(recompute, 1),
            fetch_tokens_per_s=round(fetch, 1),
            fetch_s=round(fixed, 6),
            store=self.usable,
        )

    async def commit_and_probe(self) -> None:
        """Commits what sessions hold, and probes a store that is away, until cancelled.

        Blocks that are written and not committed are committed at the end, so that other groups find them.
        """
        try:
            await asyncio.gather(
                self.ownership.commit_forever(lambda: self.write_behind, self._options.commit_interval_s),
                self._probe_forever(),
            )
        finally:
            if self.usable:
                await self.ownership.commit_last(self.write_behind)

    def _on_stored(self, stored: StoreResult) -> None:
        scheduler, health = self._engine.kv_scheduler, self.health
        if scheduler is None:
            return
        names, dropped = kv_hash.split(stored.names), kv_hash.split(stored.dropped)
        scheduler.write_behind.done(names, dropped)
        self._metrics.kv_stored_blocks.inc(len(names))
        self._metrics.kv_stored_bytes.inc(stored.num_bytes)
        self._metrics.kv_dropped_blocks.inc(len(dropped))
        if stored.error and not stored.crowded:
            health.record_failure(health.moves, stored.error)
        elif names:
            health.record_success(health.moves)

    async def _probe_forever(self) -> None:
        """Pings the store while one of its circuits is open."""
        health = self.health
        while True:
            await asyncio.sleep(self._options.circuit.open_s)
            health.apply()  # a pause may be over
            self.prefixes.host.sweep()
            if self._engine.kv_scheduler is None:
                continue
            with suppress(RyzError, EngineFailed, TimeoutError):
                if not health.lookups.is_closed:
                    await self.prefixes.find_blocks([os.urandom(kv_hash.NAME_BYTES)])
                    health.record_success(health.lookups)
                if not health.moves.is_closed:
                    await self._orders.probe_store()
