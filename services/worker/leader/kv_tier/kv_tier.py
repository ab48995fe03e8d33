"""The leader's side of the KV store: what of a prompt is there, fetching it, and writing behind.

The store is an optimisation. Whatever it does, a request waits for it within a bound and is then computed;
after a few failures nobody asks it any more until a probe got through (`kv_health.py`). Which blocks go where
is decided in `domain/`, bytes are moved by the ranks.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from services.worker.domain.generation.request import Generation
from services.worker.domain.scheduling.block_names import UNNAMED, BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.transfer_costs import FetchMode, TransferCostModel
from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.leader.kv_tier.block_ownership import BlockIndex, BlockOwnership
from services.worker.leader.kv_tier.fetch_orders import FetchOrders
from services.worker.leader.kv_tier.store_health import StoreHealth
from services.worker.metrics import WorkerMetrics
from services.worker.rank_protocol.kv_messages import StoreResult
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine, EngineFailed, EngineInfo
from shared import kv_hash
from shared.circuit import CircuitLimits
from shared.codec import unpack_tokens
from shared.errors import RyzError
from shared.messages import BlocksFound, KVRates, KVSource, SessionRecord
from shared.messages.blocks import MAX_NAMES

log = structlog.get_logger(__name__)
WRITTEN_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class KVOptions:
    """What is chosen about the store; times in seconds.

    fetch: whether to fetch what is stored, by measured costs, or in any case. write: whether full blocks are
    written. min_tokens: so many must be missing before anybody asks. failures: time-outs in a row after which
    the store is taken for away.
    """

    fetch: FetchMode = "auto"
    write: bool = True
    min_tokens: int = 32
    lookup_timeout_s: float = 0.05
    fetch_timeout_s: float = 1.0
    commit_interval_s: float = 0.1
    commit_timeout_s: float = 2.0
    failures: int = 3
    probe_s: float = 0.25


class KVTier:
    """work: called when there is something to plan. Run `run` as a task.

    names: of blocks of the engine that runs now.
    """

    def __init__(
        self,
        group: str,
        options: KVOptions,
        *,
        engine: Engine,
        index: BlockIndex,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        token_budget: int,
        work: Callable[[], None],
    ) -> None:
        self._options = options
        self._index = index
        self._metrics = metrics
        self._clock = clock
        self._work = work
        self._scheduler: Scheduler | None = None
        self.names: BlockNames = UNNAMED
        self._health = StoreHealth(
            CircuitLimits(options.failures, options.probe_s), metrics, clock, writes=options.write
        )
        self.costs = TransferCostModel(token_budget, options.fetch)
        self.holdings = BlockOwnership(
            group, index, metrics, clock, timeout_s=options.commit_timeout_s, pause=self._health.pause
        )
        self._orders = FetchOrders(
            engine,
            health=self._health,
            costs=self.costs,
            metrics=metrics,
            clock=clock,
            timeout_s=options.fetch_timeout_s,
            work=work,
        )
        engine.watch_store(self._on_stored)

    @property
    def usable(self) -> bool:
        """Whether the store is read and written at present."""
        return self._scheduler is not None and self._scheduler.write_behind.enabled

    @property
    def away(self) -> bool:
        """Whether there is a store that is not used since it did not do what it was asked for."""
        return self._scheduler is not None and self._health.away

    @property
    def write_behind(self) -> WriteBehind | None:
        """Of the engine that runs now."""
        return self._scheduler.write_behind if self._scheduler is not None else None

    def open(self, info: EngineInfo, names: BlockNames, scheduler: Scheduler) -> None:
        """An engine was started, with this scheduler."""
        self.names = names
        if info.kv_parts is not None and names.sharing != "off":
            self._scheduler = scheduler
            self.holdings.parts = info.kv_parts.heads
            self._health.serve(scheduler.write_behind)
            self._orders.open(scheduler)

    def close(self) -> None:
        """The engine is gone."""
        self._scheduler = None
        self._health.serve(None)
        self.holdings.clear()
        self._orders.close()

    def begin(self, generation: Generation) -> None:
        """A generation is with the scheduler: what it writes is held for its session.

        What it shares is written, too, if the store is not known to have it, or may have lost it.
        """
        if self._scheduler is not None:
            self.holdings.begin(generation)
            names = self.names_of(generation.choices[0].sequence)
            self._scheduler.write_behind.add(names[: self._scheduler.blocks.num_found(names)])

    def end(self, generation: Generation) -> None:
        """A generation ended, however."""
        self.holdings.end(generation)

    def names_of(self, sequence: Sequence) -> list[bytes]:
        """The names of the blocks that a sequence could find."""
        return self.names.of(sequence)[: (len(sequence.tokens) - 1) // BLOCK_SIZE]

    def at_hand(self, generation: Generation) -> KVSource | None:
        """Where a prompt's KV comes from, if that is clear without asking the store."""
        if not generation.choices or self._scheduler is None:
            return ""
        names = self.names_of(generation.choices[0].sequence)
        found = self._scheduler.blocks.num_found(names)
        enough = (len(names) - found) * BLOCK_SIZE < self._options.min_tokens
        if enough or not self._scheduler.write_behind.enabled:
            return "warm" if found else "new"
        return None

    async def find(self, generation: Generation) -> KVSource:
        """Asks what of a prompt is stored, and keeps it there for as long as fetching may take.

        Returns what the rule would do now; what is done is decided when there are blocks for the sequence.
        """
        at_hand = self.at_hand(generation)
        if at_hand is not None:
            return at_hand
        policy = generation.request.kv
        if policy == "recompute":
            return "recompute"
        assert self._scheduler is not None
        scheduler, names = self._scheduler, self.names_of(generation.choices[0].sequence)
        answer = await self._ask(names)
        here = scheduler.blocks.num_found(names)
        if scheduler is not self._scheduler:
            return ""
        behind, count = scheduler.write_behind, 0
        if answer is not None:
            behind.found(names[:answer])
            count = behind.num_trusted_of(names[:answer])
            behind.unlearn(names[max(answer, here) :])
        for choice in generation.choices:
            choice.sequence.stored = count
        if count <= here:
            return "warm" if here else "new"
        fetches = policy == "fetch" or self.costs.fetches(
            count - here, self._clock(), scheduler.queued_tokens, scheduler.under_way
        )
        return "fetch" if fetches else "recompute"

    async def warm(self, names: list[bytes]) -> int:
        """Gets a sequence's blocks into the cache; returns how many were fetched."""
        scheduler = self._scheduler
        if scheduler is None or not scheduler.write_behind.enabled or not names:
            return 0
        count = await self._ask(names) or 0
        count = scheduler.write_behind.num_trusted_of(names[:count])
        if scheduler is not self._scheduler or scheduler.blocks.num_found(names) >= count:
            return 0
        return await self._orders.alone(scheduler, names[:count])

    async def keep(self, sessions: Iterable[SessionRecord]) -> None:
        """Has the blocks of sessions written that are here and not in the store, so that others find them.

        It takes a hash of all tokens; what else the loop has to do goes on between the sessions.
        """
        for record in sessions:
            scheduler = self._scheduler
            if scheduler is None or not scheduler.write_behind.enabled:
                return
            names = self.names.of_tokens(unpack_tokens(record.token_ids), record.tenant)
            names = names[: scheduler.blocks.num_found(names)]
            if scheduler.write_behind.num_known_of(names) < len(names):
                scheduler.write_behind.add(names)
                self.holdings.keep(record, names)
                self._work()
            await asyncio.sleep(0)

    async def wait_written(self, timeout_s: float) -> bool:
        """Whether all that waits now is written in that time, or lost; later blocks are not waited for."""
        deadline, behind = self._clock() + timeout_s, self.write_behind
        due = behind.due() if behind is not None else ()
        while behind is not None and behind.enabled and behind is self.write_behind:
            due = [name for name in due if behind.is_due(name)]
            if not due:
                return True
            if self._clock() >= deadline:
                return False
            self._work()
            await asyncio.sleep(WRITTEN_POLL_S)
        return not due

    def order(self, scheduler: Scheduler) -> None:
        """Gives the engine the fetches that a plan made necessary."""
        self._orders.order(scheduler)

    def describe(self) -> dict[str, object]:
        """What `ryz status` shows."""
        behind = self.write_behind
        if behind is None:
            return {"state": "off"}
        recompute, fetch, fixed = self.costs.rates()
        return {
            "state": "away" if self._health.away else "used",
            "writes": behind.writes,
            "known_blocks": behind.num_known,
            "losses": self._health.losses,
            "recompute_tokens_per_s": round(recompute),
            "fetch_tokens_per_s": round(fetch),
            "fetch_ms": round(1000 * fixed, 3),
        }

    def rates(self) -> KVRates:
        """What heartbeats say of fetching and computing."""
        recompute, fetch, fixed = self.costs.rates()
        return KVRates(
            recompute_tokens_per_s=round(recompute, 1),
            fetch_tokens_per_s=round(fetch, 1),
            fetch_s=round(fixed, 6),
            store=self.usable,
        )

    async def run(self) -> None:
        """Tells the KV state service what is held, and probes a store that is away, until cancelled.

        What is written and not told is told then, so that other groups find what this one leaves.
        """
        try:
            await asyncio.gather(
                self.holdings.run(lambda: self.write_behind, self._options.commit_interval_s), self._probe()
            )
        finally:
            if self.usable:
                await self.holdings.tell_last(self.write_behind)

    async def _ask(self, names: list[bytes]) -> int | None:
        """How many leading blocks are stored; None: nobody said."""
        try:
            found = await self._find(names[:MAX_NAMES])
        except RyzError as error:
            self._metrics.kv_lookups.labels("failed").inc()
            self._health.failed(self._health.lookups, error.message)
            return None
        count = min(found.count, len(names))
        self._metrics.kv_lookups.labels("found" if count else "unknown").inc()
        self._health.worked(self._health.lookups)
        return count

    async def _find(self, names: list[bytes]) -> BlocksFound:
        options = self._options
        lease_ms = round(2000 * options.fetch_timeout_s)
        return await self._index.find(
            names, lease_ms=lease_ms, timeout_s=options.lookup_timeout_s, parts=self.holdings.parts
        )

    def _on_stored(self, stored: StoreResult) -> None:
        if self._scheduler is None:
            return
        names, dropped = kv_hash.split(stored.names), kv_hash.split(stored.dropped)
        self._scheduler.write_behind.done(names, dropped)
        self._metrics.kv_stored_blocks.inc(len(names))
        self._metrics.kv_stored_bytes.inc(stored.num_bytes)
        self._metrics.kv_dropped_blocks.inc(len(dropped))
        health = self._health
        if stored.error and not stored.crowded:
            health.failed(health.moves, stored.error)
        elif names:
            health.worked(health.moves)

    async def _probe(self) -> None:
        """Asks what has no answer but that somebody is there, for as long as a circuit is open."""
        health = self._health
        while True:
            await asyncio.sleep(self._options.probe_s)
            health.switch()  # a pause may be over
            if self._scheduler is None:
                continue
            with suppress(RyzError, EngineFailed, TimeoutError):
                if health.lookups.open:
                    await self._find([os.urandom(kv_hash.NAME_BYTES)])
                    health.worked(health.lookups)
                if health.moves.open:
                    await self._orders.probe()
