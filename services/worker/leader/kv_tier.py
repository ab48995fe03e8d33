"""The leader's side of the KV store: what of a prompt is there, fetching it, writing behind, and its circuit.

The store is an optimisation. Whatever it does, a request waits for it within a bound and is then computed;
after a few failures nobody asks it any more until a probe got through. Which blocks go where is decided in
`domain/`, bytes are moved by the ranks.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from services.worker.domain.fetches import Fetch
from services.worker.domain.kv_costs import FetchMode, KVCosts
from services.worker.domain.kv_messages import FetchBlocks, Fetched, Stored
from services.worker.domain.names import BlockNames
from services.worker.domain.plan import BLOCK_SIZE, Engine, EngineFailed, EngineInfo
from services.worker.domain.request import Generation
from services.worker.domain.scheduler import Scheduler
from services.worker.domain.sequence import Sequence
from services.worker.domain.write_behind import WriteBehind
from services.worker.leader.kv_holdings import BlockIndex, Holdings
from services.worker.metrics import Metrics
from shared import kv_hash
from shared.circuit import Circuit, CircuitLimits
from shared.errors import RyzError
from shared.messages import KVRates, KVSource

log = structlog.get_logger(__name__)


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
        metrics: Metrics,
        clock: Callable[[], float],
        token_budget: int,
        work: Callable[[], None],
    ) -> None:
        self._options = options
        self._engine = engine
        self._index = index
        self._metrics = metrics
        self._clock = clock
        self._work = work
        self._circuit = Circuit(CircuitLimits(options.failures, options.probe_s))
        self._scheduler: Scheduler | None = None
        self.names = BlockNames("", sharing="off")
        self._arrived: dict[int, asyncio.Future[int]] = {}
        self._paused_until = 0.0
        self.costs = KVCosts(token_budget, options.fetch)
        self.holdings = Holdings(
            group, index, metrics, clock, timeout_s=options.commit_timeout_s, pause=self._pause
        )
        engine.watch_store(self._on_stored)

    @property
    def usable(self) -> bool:
        """Whether the store is read and written at present."""
        return self._scheduler is not None and self._scheduler.write_behind.enabled

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
            self._switch()

    def close(self) -> None:
        """The engine is gone."""
        self._scheduler = None
        self.holdings.clear()
        for arrived in self._arrived.values():
            arrived.cancel()
        self._arrived.clear()

    def begin(self, generation: Generation) -> None:
        """A generation is with the scheduler: what it writes is held for its session."""
        if self._scheduler is not None:
            self.holdings.begin(generation)

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
        count = await self._ask(names)
        here = scheduler.blocks.num_found(names)
        if scheduler is not self._scheduler:
            return ""
        scheduler.write_behind.found(names[:count])
        for choice in generation.choices:
            choice.sequence.stored = count
        if count <= here:
            return "warm" if here else "new"
        fetches = policy == "fetch" or self.costs.fetches(count - here, self._clock())
        return "fetch" if fetches else "recompute"

    async def warm(self, names: list[bytes]) -> int:
        """Gets a sequence's blocks into the cache; returns how many were fetched."""
        scheduler = self._scheduler
        if scheduler is None or not scheduler.write_behind.enabled:
            return 0
        count = await self._ask(names)
        if scheduler is not self._scheduler or scheduler.blocks.num_found(names) >= count:
            return 0
        fetch_id = scheduler.queues.fetches.begin_alone(names[:count])
        if not fetch_id:
            return 0
        arrived = self._arrived[fetch_id] = asyncio.get_running_loop().create_future()
        self._work()  # it is ordered with the next plan
        try:
            async with asyncio.timeout(self._options.fetch_timeout_s):
                return await arrived
        except TimeoutError:
            return 0
        finally:
            self._arrived.pop(fetch_id, None)

    def order(self, scheduler: Scheduler) -> None:
        """Gives the engine the fetches that a plan made necessary."""
        for fetch in scheduler.take_fetches():
            order = FetchBlocks(
                fetch_id=fetch.fetch_id,
                blocks=fetch.blocks,
                names=b"".join(fetch.names),
                after_step=fetch.after_step,
            )
            try:
                future = asyncio.ensure_future(self._engine.fetch(order))
            except EngineFailed:
                return  # the next step says so, too
            began = self._clock()
            timer = asyncio.get_running_loop().call_later(
                self._options.fetch_timeout_s, self._give_up, scheduler, fetch
            )

            def done(
                answer: asyncio.Future[Fetched],
                fetch: Fetch = fetch,
                timer: asyncio.TimerHandle = timer,
                began: float = began,
            ) -> None:
                timer.cancel()
                if not answer.cancelled() and answer.exception() is None and scheduler is self._scheduler:
                    self._take(scheduler, fetch, answer.result(), self._clock() - began)

            future.add_done_callback(done)

    def describe(self) -> dict[str, object]:
        """What `ryz status` shows."""
        behind = self.write_behind
        if behind is None:
            return {"state": "off"}
        recompute, fetch, fixed = self.costs.rates()
        return {
            "state": "away" if self._circuit.open else "used",
            "writes": behind.writes,
            "known_blocks": behind.num_known,
            "losses": self._circuit.opened_total,
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
        """Tells the KV state service what is held, and probes a store that is away, until cancelled."""
        await asyncio.gather(
            self.holdings.run(lambda: self.write_behind, self._options.commit_interval_s), self._probe()
        )

    async def _ask(self, names: list[bytes]) -> int:
        options = self._options
        lease_ms = round(2000 * options.fetch_timeout_s)
        try:
            found = await self._index.find(names, lease_ms=lease_ms, timeout_s=options.lookup_timeout_s)
        except RyzError as error:
            self._metrics.kv_lookups.labels("failed").inc()
            self._failed(error.message)
            return 0
        count = min(found.count, len(names))
        self._metrics.kv_lookups.labels("found" if count else "unknown").inc()
        self._succeeded()
        return count

    def _take(self, scheduler: Scheduler, fetch: Fetch, answer: Fetched, seconds: float) -> None:
        scheduler.fetched(fetch.fetch_id, answer.count)
        metrics, wanted = self._metrics, len(fetch.names)
        metrics.kv_fetched_blocks.inc(answer.count)
        metrics.kv_fetched_bytes.inc(answer.num_bytes)
        metrics.kv_fetch_seconds.observe(seconds)
        if answer.corrupt:
            names = kv_hash.split(answer.corrupt)
            metrics.kv_corrupt_blocks.inc(len(names))
            log.warning("stored blocks are damaged; they are computed again", number=len(names))
        outcome = "whole" if answer.count == wanted else "part" if answer.count else "nothing"
        metrics.kv_fetches.labels(outcome).inc()
        if answer.error:
            self._failed(answer.error)
        else:
            self._succeeded()
            if answer.count == wanted:
                self.costs.fetched(wanted, seconds, self._clock())
        arrived = self._arrived.get(fetch.fetch_id)
        if arrived is not None and not arrived.done():
            arrived.set_result(answer.count)
        self._work()

    def _give_up(self, scheduler: Scheduler, fetch: Fetch) -> None:
        """The store takes too long; who waits computes instead, and the slowness is remembered."""
        if scheduler is not self._scheduler:
            return
        self._metrics.kv_fetches.labels("given_up").inc()
        self.costs.fetched(len(fetch.names), self._options.fetch_timeout_s, self._clock())
        scheduler.give_up(fetch.fetch_id)
        self._failed("a fetch was not done in time")
        self._work()

    def _on_stored(self, stored: Stored) -> None:
        if self._scheduler is None:
            return
        names, dropped = kv_hash.split(stored.names), kv_hash.split(stored.dropped)
        self._scheduler.write_behind.done(names, dropped)
        self._metrics.kv_stored_blocks.inc(len(names))
        self._metrics.kv_stored_bytes.inc(stored.num_bytes)
        self._metrics.kv_dropped_blocks.inc(len(dropped))
        if stored.error:
            self._failed(stored.error)

    async def _probe(self) -> None:
        """Asks for what nobody has, for as long as the circuit is open; anything answered closes it."""
        while True:
            await asyncio.sleep(self._options.probe_s)
            if self._paused_until and self._clock() >= self._paused_until:
                self._paused_until = 0.0
                self._switch()
            if self._circuit.open and self._scheduler is not None:
                await self._ask([os.urandom(kv_hash.NAME_BYTES)])

    def _pause(self, seconds: float) -> None:
        """There is no room in the store: nothing is written for a while, and what is there is still read."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self._switch()

    def _succeeded(self) -> None:
        if self._circuit.succeeded():
            log.info("the KV store is back")
            self._switch()

    def _failed(self, why: str) -> None:
        if self._circuit.failed(self._clock(), refused=False):
            log.warning("the KV store is away; prompts are computed instead", why=why)
            self._switch()

    def _switch(self) -> None:
        """Makes what the scheduler does agree with the circuit."""
        self._metrics.kv_store_up.set(0 if self._circuit.open else 1)
        if self._scheduler is not None:
            behind = self._scheduler.write_behind
            if self._circuit.open:
                behind.forget_all()  # it may come back empty
            behind.enabled = not self._circuit.open
            behind.writes = self._options.write and not self._paused_until
