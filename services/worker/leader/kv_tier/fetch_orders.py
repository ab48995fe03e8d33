"""Fetches that the ranks were given: followed to their end, in time or not, and what they teach.

Whoever waits for one does so within a bound. What comes later than that is put away like any other block, but
says nothing good of the store.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from services.worker.domain.scheduling.block_fetches import BlockFetch
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.transfer_costs import TransferCostModel
from services.worker.leader.kv_tier.store_health import StoreHealth
from services.worker.metrics import WorkerMetrics
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult
from services.worker.rank_protocol.plan import Engine, EngineFailed
from shared import kv_hash

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Order:
    """A fetch that the ranks were given. late: it was given up, and what comes of it is only put away."""

    scheduler: Scheduler
    fetch: BlockFetch
    began: float
    late: bool = False


class FetchOrders:
    """timeout_s: how long anybody waits for a fetch. work: called when there is something to plan."""

    def __init__(
        self,
        engine: Engine,
        *,
        health: StoreHealth,
        costs: TransferCostModel,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        timeout_s: float,
        work: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._health = health
        self._costs = costs
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._work = work
        self._scheduler: Scheduler | None = None
        self._arrived: dict[int, asyncio.Future[int]] = {}
        self._last_probe = 0
        self._last_done = 0.0  # when a fetch last was

    def open(self, scheduler: Scheduler) -> None:
        """An engine was started, with this scheduler; answers to others' orders are not heard any more."""
        self._scheduler = scheduler

    def close(self) -> None:
        """The engine is gone, and nothing comes any more."""
        self._scheduler = None
        for arrived in self._arrived.values():
            if not arrived.done():
                arrived.set_result(0)
        self._arrived.clear()

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
                future = asyncio.ensure_future(self._engine.fetch_blocks(order))
            except EngineFailed:
                return  # the next step says so, too
            self._follow(_Order(scheduler, fetch, self._clock()), future)

    async def alone(self, scheduler: Scheduler, names: list[bytes]) -> int:
        """Gets blocks for nobody in particular; returns how many came in time."""
        fetch_id = scheduler.queues.fetches.begin_alone(names)
        if not fetch_id:
            return 0
        arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._arrived[fetch_id] = arrived
        self._work()  # it is ordered with the next plan
        try:
            async with asyncio.timeout(self._timeout_s):
                return await arrived
        except TimeoutError:
            return 0
        finally:
            self._arrived.pop(fetch_id, None)

    async def probe(self) -> None:
        """Has the ranks ask the store whether it is there. Raises `EngineFailed`, or `TimeoutError`."""
        self._last_probe -= 1  # of its own kind: fetches have numbers above zero
        order = FetchBlocks(fetch_id=self._last_probe, blocks=[], names=b"")
        async with asyncio.timeout(self._timeout_s):
            answer = await self._engine.fetch_blocks(order)
        if not answer.error:
            self._health.worked(self._health.moves)

    def _follow(self, order: _Order, future: asyncio.Future[FetchResult]) -> None:
        """Sees to the end of a fetch, in time or not."""
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, order)

        def done(answer: asyncio.Future[FetchResult]) -> None:
            timer.cancel()
            lost = answer.cancelled() or answer.exception() is not None  # and with it the engine
            if not lost and order.scheduler is self._scheduler:
                self._take(order, answer.result())

        future.add_done_callback(done)

    def _take(self, order: _Order, answer: FetchResult) -> None:
        fetch, metrics, now = order.fetch, self._metrics, self._clock()
        order.scheduler.fetched(fetch.fetch_id, answer.count)
        metrics.kv_fetched_blocks.inc(answer.count)
        metrics.kv_fetched_bytes.inc(answer.num_bytes)
        if corrupt := list(dict.fromkeys(kv_hash.split(answer.corrupt))):  # several ranks may tell of one
            metrics.kv_corrupt_blocks.inc(len(corrupt))
            log.warning("stored blocks are damaged; they are computed again", number=len(corrupt))
        missing = fetch.names[answer.count : answer.count + 1] if answer.missing else []
        order.scheduler.write_behind.distrust(corrupt + missing)
        if not order.late:
            self._account(order, answer, now)
        self._last_done = now
        arrived = self._arrived.get(fetch.fetch_id)
        if arrived is not None and not arrived.done():
            arrived.set_result(answer.count)
        self._work()

    def _account(self, order: _Order, answer: FetchResult, now: float) -> None:
        """Learns from a fetch that was done in time."""
        seconds, wanted, health = now - order.began, len(order.fetch.names), self._health
        outcome = "whole" if answer.count == wanted else "part" if answer.count else "nothing"
        self._metrics.kv_fetches.labels(outcome).inc()
        self._metrics.kv_fetch_seconds.observe(seconds)
        if answer.error:
            health.failed(health.moves, answer.error)
            return
        health.worked(health.moves)
        if answer.count == wanted:
            self._costs.fetched(wanted, now - max(order.began, self._last_done), now)

    def _give_up(self, order: _Order) -> None:
        """The store takes too long; who waits computes instead, and the slowness is remembered."""
        order.late = True
        scheduler, fetch = order.scheduler, order.fetch
        if scheduler is not self._scheduler:
            return
        self._metrics.kv_fetches.labels("given_up").inc()
        now = self._clock()
        own_s, self._last_done = now - max(order.began, self._last_done), now
        if own_s > self._timeout_s / 2:  # else it stood behind one that was as slow, which is known by now
            self._costs.fetched(len(fetch.names), own_s, now)
        scheduler.give_up(fetch.fetch_id)
        self._health.failed(self._health.moves, "a fetch was not done in time")
        self._work()
