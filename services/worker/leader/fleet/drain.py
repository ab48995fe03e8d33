"""Ends a group on request: no new work, running requests end or move, KV and session records are kept.

A drain is asked for on the bus or by a signal. Requests that do not end in time are failed, so that their
callers resume them on another group; before that their KV, and that of the sessions here, is written to the
store. Every step has a bound: if store, broker or engine are away, less is kept, but the end comes no later.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

import structlog

from services.worker.leader.context import LeaderContext
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.records import SessionRecords
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from shared.bus.api import Message
from shared.errors import GroupLost
from shared.messages import DrainGroup, Draining

log = structlog.get_logger(__name__)
HAND_OVER_S = 1.0  # for KV to be written: that of running requests before they move, and then the rest
POLL_S = 0.05


class Drain:
    """Begins once, however often it is asked for; the shortest time-out of all counts.

    Args:
        orchestrator: Its state refuses new work from the beginning of the drain.
        kv_tier: Writes KV to the store.
        sessions: Their KV is kept.
        announce: Sends a heartbeat at once.

    Attributes:
        done: Set when the drain is over.
    """

    def __init__(
        self,
        context: LeaderContext,
        orchestrator: MultiGPUOrchestrator,
        table: RequestTable,
        kv_tier: KVTier,
        sessions: SessionRecords,
        *,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self.done = asyncio.Event()
        self._group = context.group
        self._clock = context.clock
        self._orchestrator = orchestrator
        self._table = table
        self._kv_tier = kv_tier
        self._sessions = sessions
        self._announce = announce
        self._deadline = math.inf
        self._draining: asyncio.Task[None] | None = None

    @property
    def left_s(self) -> float:
        """Seconds until running requests move."""
        return max(0.0, self._deadline - self._clock())

    def begin_drain(self, timeout_s: float) -> None:
        """Takes no new work from here on; running requests may go on for that long."""
        self._deadline = min(self._deadline, self._clock() + timeout_s)
        self._orchestrator.drain()
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(), name="drain")
            self._draining.add_done_callback(self._end_drain)

    async def drain_group(self, timeout_s: float) -> None:
        """Drains, or joins the drain that is under way; returns when it is over."""
        self.begin_drain(timeout_s)
        await self.done.wait()

    async def cut_short(self) -> None:
        """Moves what still runs at once, whether or not a drain is under way."""
        self._orchestrator.drain()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        self._move_requests()

    async def _drain(self) -> None:
        table, tier = self._table, self._kv_tier
        await self._announce()
        log.info("the group drains", requests=len(table.by_key))
        while table.by_key and (left_s := self.left_s) > 0:
            await table.wait_empty(min(left_s, POLL_S))
        if table.by_key:
            log.info("requests move to other groups", number=len(table.by_key))
            await tier.wait_written(HAND_OVER_S / 2)
            self._move_requests()
        async with asyncio.timeout(HAND_OVER_S / 2):
            await tier.keep_sessions(self._sessions.newest_first())
            await tier.wait_written(HAND_OVER_S / 2)

    def _move_requests(self) -> None:
        error = f"group {self._group} is shutting down, the request goes on elsewhere"
        self._table.fail_all(GroupLost(error, reason="draining"))

    def _end_drain(self, drain: "asyncio.Task[None]") -> None:
        error = None if drain.cancelled() else drain.exception()
        if error is not None and not isinstance(error, TimeoutError):
            log.error("the drain broke off, the group ends all the same", exc_info=error)
        self.done.set()


class DrainCalls:
    """The call of the drain subject.

    Args:
        drain: Is begun; the process ends when it is done.
        timeout_s: For calls that name none.
    """

    def __init__(self, context: LeaderContext, drain: Drain, table: RequestTable, timeout_s: float) -> None:
        self._context = context
        self._drain = drain
        self._table = table
        self._timeout_s = timeout_s

    async def drain_group(self, asked: DrainGroup, _: Message) -> Draining:
        """Begins to drain, and returns how long running requests may go on."""
        self._drain.begin_drain(asked.timeout_ms / 1000 if asked.timeout_ms else self._timeout_s)
        return Draining(
            group=self._context.group,
            instance_id=self._context.instance_id,
            requests=len(self._table.by_key),
            timeout_ms=round(1000 * self._drain.left_s),
        )
