"""Orders fetches from the ranks, follows each to its end, and learns the cost of fetching from it.

A sequence waits for a fetch within a bound. Blocks that come later are cached like any others, but count
against the store.
"""

import asyncio
from dataclasses import dataclass

import structlog

from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.store_health import StoreHealth
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult
from shared import kv_hash

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Order:
    """A fetch that was given to the ranks; `late` when it was given up: its blocks are only cached."""

    scheduler: Scheduler
    fetch: BlockFetch
    began: float
    late: bool = False


class FetchOrders:
    """The fetches under way.

    Args:
        engine: Moves the blocks; its scheduler says which.
        health: Learns whether the store works.
        timeout_s: How long a sequence waits for a fetch.
    """

    def __init__(
        self, context: LeaderContext, engine: EngineState, health: StoreHealth, timeout_s: float
    ) -> None:
        self._engine = engine
        self._health = health
        self._costs = engine.costs
        self._metrics = context.metrics
        self._clock = context.clock
        self._timeout_s = timeout_s
        self._arrived: dict[int, asyncio.Future[int]] = {}
        self._last_probe = 0
        self._last_done = 0.0  # when a fetch last was

    def close_store(self) -> None:
        """Ends the waits for fetches of an engine that is down."""
        for arrived in self._arrived.values():
            if not arrived.done():
                arrived.set_result(0)
        self._arrived.clear()

    def order_fetches(self, scheduler: Scheduler) -> None:
        """Gives the ranks the fetches that a plan made necessary."""
        for fetch in scheduler.take_fetches():
            order = FetchBlocks(
                fetch_id=fetch.fetch_id,
                blocks=fetch.blocks,
                names=b"".join(fetch.names),
                sliding_blocks=fetch.sliding,
                after_step=fetch.after_step,
            )
            try:
                future = asyncio.ensure_future(self._engine.engine.fetch_blocks(order))
            except EngineFailed:
                return  # the next step reports it, too
            if fetch.sequence is not None:
                fetch.sequence.timeline.mark("fetching", {"blocks": len(fetch.names)})
            self._follow(_Order(scheduler, fetch, self._clock()), future)

    async def fetch_alone(self, scheduler: Scheduler, names: list[bytes]) -> int:
        """Fetches blocks for which no sequence waits; returns how many came in time."""
        fetch_id = scheduler.queues.fetches.begin_alone(names)
        if not fetch_id:
            return 0
        arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._arrived[fetch_id] = arrived
        self._engine.work.set()  # it is ordered with the next plan
        try:
            async with asyncio.timeout(self._timeout_s):
                return await arrived
        except TimeoutError:
            return 0
        finally:
            self._arrived.pop(fetch_id, None)

    async def probe_store(self) -> None:
        """Lets the ranks ask the store for nothing. Raises `EngineFailed` or `TimeoutError`."""
        self._last_probe -= 1  # fetches have numbers above zero
        order = FetchBlocks(fetch_id=self._last_probe, blocks=[], names=b"")
        async with asyncio.timeout(self._timeout_s):
            answer = await self._engine.engine.fetch_blocks(order)
        if not answer.error:
            self._health.record_success(self._health.moves)

    def _follow(self, order: _Order, future: asyncio.Future[FetchResult]) -> None:
        """Awaits the end of a fetch, and gives it up when it takes too long."""
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, order)

        def done(answer: asyncio.Future[FetchResult]) -> None:
            timer.cancel()
            lost = answer.cancelled() or answer.exception() is not None  # and with it the engine
            if not lost and order.scheduler is self._engine.kv_scheduler:
                self._end_fetch(order, answer.result())

        future.add_done_callback(done)

    def _end_fetch(self, order: _Order, answer: FetchResult) -> None:
        fetch, metrics, now = order.fetch, self._metrics, self._clock()
        if fetch.sequence is not None:
            fetch.sequence.timeline.mark("fetched", {"blocks": answer.count, "bytes": answer.num_bytes})
        order.scheduler.fetched(fetch.fetch_id, answer.count)
        metrics.kv_fetched_blocks.inc(answer.count)
        metrics.kv_fetched_bytes.inc(answer.num_bytes)
        metrics.kv_host_blocks.inc(answer.from_host)
        if corrupt := list(dict.fromkeys(kv_hash.split(answer.corrupt))):  # several ranks may name one
            metrics.kv_corrupt_blocks.inc(len(corrupt))
            log.warning("stored blocks are damaged; they are computed again", number=len(corrupt))
        missing = fetch.names[answer.count : answer.count + 1] if answer.missing else []
        order.scheduler.write_behind.distrust(corrupt + missing)
        if not order.late:
            self._learn(order, answer, now)
        self._last_done = now
        arrived = self._arrived.get(fetch.fetch_id)
        if arrived is not None and not arrived.done():
            arrived.set_result(answer.count)
        self._engine.work.set()

    def _learn(self, order: _Order, answer: FetchResult, now: float) -> None:
        """Records the outcome and the cost of a fetch that was done in time."""
        seconds, wanted, health = now - order.began, len(order.fetch.names), self._health
        outcome = "whole" if answer.count == wanted else "part" if answer.count else "nothing"
        self._metrics.kv_fetches.labels(outcome).inc()
        self._metrics.kv_fetch_seconds.observe(seconds)
        if answer.error:
            health.record_failure(health.moves, answer.error)
            return
        health.record_success(health.moves)
        if answer.count == wanted and answer.from_host < wanted:  # memory shows nothing of the store
            self._costs.fetched(wanted, now - max(order.began, self._last_done), now)

    def _give_up(self, order: _Order) -> None:
        """Lets the sequence compute its blocks, since the store takes too long, and records the cost."""
        order.late = True
        scheduler, fetch = order.scheduler, order.fetch
        if scheduler is not self._engine.kv_scheduler:
            return
        self._metrics.kv_fetches.labels("given_up").inc()
        now = self._clock()
        own_s, self._last_done = now - max(order.began, self._last_done), now
        if own_s > self._timeout_s / 2:  # else it waited behind a slow fetch, which was recorded
            self._costs.fetched(len(fetch.names), own_s, now)
        scheduler.give_up(fetch.fetch_id)
        self._health.record_failure(self._health.moves, "a fetch was not done in time")
        self._engine.work.set()
