"""Fits the group's KV cache to the memory that the host has available; `cache_room.py` decides."""

import asyncio
from collections.abc import Callable

import structlog

from services.worker.domain.blocks.cache_room import CacheRoom, CacheUse, Margins
from services.worker.domain.blocks.pool import blocks_for
from services.worker.leader.engine_state import EngineState
from shared.host.cores_and_memory import available_bytes, total_bytes

log = structlog.get_logger(__name__)
INTERVAL_S = 1.0


class KVRoom:
    """Limits the KV cache while memory is short.

    Args:
        available: Returns the available bytes.
        total: All memory of this machine or container.
    """

    def __init__(
        self,
        engine: EngineState,
        available: Callable[[], int] = available_bytes,
        total: Callable[[], int] = total_bytes,
    ) -> None:
        self._engine = engine
        self._available = available
        self._room = CacheRoom(Margins.of(total()))
        self._most: int | None = None

    async def watch_memory(self) -> None:
        """Adjusts the limit until cancelled."""
        while True:
            self.adjust()
            await asyncio.sleep(INTERVAL_S)

    def set_kv_limit(self, blocks: int | None) -> None:
        """Limits the cache from now on, also when there is memory for more; None: it may have all blocks."""
        self._most = blocks
        self.adjust()

    def adjust(self) -> None:
        """Sets the limit for the memory that is available now, if the engine can give memory back."""
        engine, scheduler, info = self._engine, self._engine.scheduler, self._engine.info
        if scheduler is None or info is None or not info.block_bytes:
            return
        blocks, before = scheduler.blocks, self._room.limit or info.num_blocks
        try:
            available = self._available()
        except OSError as error:  # such as no descriptor left: the limit stays, and the leader lives on
            log.warning("the available memory cannot be read", error=str(error))
            return
        sliding = info.sliding_bytes * info.num_sliding_blocks / info.num_blocks
        use = CacheUse(
            num_blocks=info.num_blocks,
            num_held=blocks.num_held,
            floor=blocks_for(engine.facts.context_length),
            block_bytes=len(info.ranks) * (info.block_bytes + int(sliding)),
        )
        limit = self._room.next_limit(engine.clock(), available, use)
        wanted = limit if self._most is None else min(limit, self._most)
        if wanted < info.num_blocks or blocks.limit < info.num_blocks:  # again: sequences grew into it
            engine.set_kv_limit(wanted)
        if limit < before:
            log.warning("memory is short: the KV cache is smaller", blocks=limit, available_bytes=available)
        elif before < limit == info.num_blocks:
            log.info("the KV cache has all its blocks again", blocks=limit)
