"""The end of a group that is wanted: no new work, what runs ends or moves, and nobody's KV is lost with it.

Asked for on the bus, or by a signal. Requests that do not end in time are failed so that their callers resume
them on another group; before that their KV, and that of the sessions here, is written to the store. Every
step has a bound: a store, broker or engine that is away makes the end poorer, not longer.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

import structlog

from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.session_records import SessionRecords
from shared.bus.api import Message
from shared.errors import GroupLost, Unavailable
from shared.messages import DrainGroup, Draining

log = structlog.get_logger(__name__)
HAND_OVER_S = 1.0  # for KV to be written: that of running requests before they move, and then the rest
POLL_S = 0.05


class Drain:
    """Begins once, however often it is asked for; the shortest time-out of all counts.

    on_begin: called when no more work is taken. announce: tells routers at once.
    timeout_s: for who names none.
    """

    def __init__(
        self,
        group: str,
        instance_id: str,
        *,
        generations: RequestTable,
        kv_tier: KVTier,
        sessions: SessionRecords,
        on_begin: Callable[[], None],
        announce: Callable[[], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        self._group = group
        self._instance_id = instance_id
        self._generations = generations
        self._kv_tier = kv_tier
        self._sessions = sessions
        self._on_begin = on_begin
        self._announce = announce
        self._timeout_s = timeout_s
        self._deadline = math.inf
        self._draining: asyncio.Task[None] | None = None
        self._refuses = False
        self.done = asyncio.Event()

    @property
    def active(self) -> bool:
        """Whether the group takes no more work, now and for good."""
        return self._refuses

    def refusal(self) -> Unavailable:
        """What is said to who comes with work."""
        return Unavailable(f"group {self._group} is shutting down", reason="draining")

    async def on_drain(self, asked: DrainGroup, _: Message) -> Draining:
        """Answers, and drains; what ends the process then waits for `done`."""
        self.begin(asked.timeout_ms / 1000 if asked.timeout_ms else self._timeout_s)
        left_s = max(0.0, self._deadline - self._generations.clock())
        return Draining(
            group=self._group,
            instance_id=self._instance_id,
            requests=len(self._generations.by_id),
            timeout_ms=round(1000 * left_s),
        )

    def begin(self, timeout_s: float) -> None:
        """Takes no new work from here on; requests in hand may go on for that long."""
        self._deadline = min(self._deadline, self._generations.clock() + timeout_s)
        self._refuse()
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(), name="drain")
            self._draining.add_done_callback(self._ended)

    async def run(self, timeout_s: float) -> None:
        """Drains, or joins the drain that is under way; returns when nothing is left to wait for."""
        self.begin(timeout_s)
        await self.done.wait()

    async def stop(self) -> None:
        """Cuts it short: what still runs moves now."""
        self._refuse()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        self._move()

    def _refuse(self) -> None:
        self._refuses = True
        self._on_begin()

    async def _drain(self) -> None:
        generations, tier = self._generations, self._kv_tier
        await self._announce()
        log.info("the group drains", requests=len(generations.by_id))
        while generations.by_id and (left := self._deadline - generations.clock()) > 0:
            await generations.wait_empty(min(left, POLL_S))
        if generations.by_id:
            log.info("requests move to other groups", number=len(generations.by_id))
            await tier.wait_written(HAND_OVER_S / 2)
            self._move()
        async with asyncio.timeout(HAND_OVER_S / 2):
            await tier.keep(self._sessions.newest_first())
            await tier.wait_written(HAND_OVER_S / 2)

    def _move(self) -> None:
        error = f"group {self._group} is shutting down, the request goes on elsewhere"
        self._generations.fail_all(GroupLost(error, reason="draining"))

    def _ended(self, drain: "asyncio.Task[None]") -> None:
        error = None if drain.cancelled() else drain.exception()
        if error is not None and not isinstance(error, TimeoutError):
            log.error("the drain broke off, the group ends all the same", exc_info=error)
        self.done.set()
