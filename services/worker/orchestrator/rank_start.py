"""A start of the engine: which ranks are ready, the wait for the others, and what they are together."""

import asyncio
from collections.abc import Callable

from services.worker.orchestrator.process_group_manager import ProcessGroupManager
from services.worker.orchestrator.running_steps import fail_future
from services.worker.orchestrator.time_limits import UsableLimit
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import Failure
from services.worker.rank_protocol.rank_messages import RankReady


class RankStart:
    """The ranks that are ready, and the wait until all are.

    Args:
        processes: Has the ranks.
        world: Number of ranks.
        on_failure: Called when they take too long; it is to call `fail_wait`.

    Attributes:
        ready: What each rank said when it had loaded the model, by its number.
    """

    def __init__(
        self, processes: ProcessGroupManager, world: int, on_failure: Callable[[Failure], None]
    ) -> None:
        self.ready: dict[int, RankReady] = {}
        self._processes, self._world, self._on_failure = processes, world, on_failure
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next check

    @property
    def is_done(self) -> bool:
        """Whether all ranks are ready."""
        return len(self.ready) == self._world

    def note_ready(self, rank: int, report: RankReady) -> None:
        """Keep what a rank said; the last one ends the wait."""
        self.ready[rank] = report
        if self.is_done and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail_wait(self, failure: Failure) -> bool:
        """End the wait with the error of a failure; returns whether there was one."""
        if self._waiter is None:
            return False
        fail_future(self._waiter, failure)
        return True

    async def wait_ready(self, limit_s: float) -> None:
        """Wait until all ranks are ready, at most for so many seconds that they could use."""
        if self.is_done:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._check_later(UsableLimit(limit_s, loop.time()), limit_s)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()

    def _check_later(self, watch: UsableLimit, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(watch.interval_s, self._check, watch, limit_s)

    def _check(self, watch: UsableLimit, limit_s: float) -> None:
        """Check the ranks that still load, repeatedly until all are ready."""
        loading = [rank for rank in self._processes.ranks if rank.rank not in self.ready]
        if watch.is_late(asyncio.get_running_loop().time(), self._processes.read_waited(loading)):
            self._on_failure(
                Failure("start_failed", f"the ranks did not load the model within {limit_s:g} s")
            )
        else:
            self._check_later(watch, limit_s)

    def describe(self) -> EngineInfo:
        """Return the description of the engine; all of its ranks have the same model."""
        ranks = [self.ready[rank] for rank in range(self._world)]
        first = ranks[0]
        return EngineInfo(
            num_blocks=first.num_blocks,
            vocab_size=first.vocab_size,
            context_length=first.context_length,
            fingerprint=first.fingerprint,
            kv_format=first.kv_format,
            kv_parts=first.kv_parts,
            hidden_size=first.hidden_size,
            num_sliding_blocks=first.num_sliding_blocks,
            window=first.window,
            block_bytes=min(rank.block_bytes for rank in ranks),
            sliding_bytes=min(rank.sliding_bytes for rank in ranks),
            adapters=all(rank.adapters for rank in ranks),
            ranks=[rank.info for rank in ranks],
        )
