"""Fits the group's KV cache to the memory that the host has available, and to what a controller lets it take.

`cache_room.py` decides on the first. The second is a promise to others: running requests do not grow beyond
it, and it is set no lower than what they hold and need soon.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from services.worker.domain.blocks.cache_room import CacheRoom, CacheUse, Margins
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.engine_state import EngineState
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.bus.api import Message
from shared.errors import Unavailable
from shared.host.cores_and_memory import available_bytes, total_bytes
from shared.messages import KVLimited, LimitKV

log = structlog.get_logger(__name__)
INTERVAL_S = 1.0
GROWTH_TOKENS = 256  # of each running request count as needed beside what it holds


class KVUse(NamedTuple):
    """What the cache takes, and may be limited to, in blocks.

    Attributes:
        most: All of them.
        least: As many as the longest request needs.
        needed: What running requests hold and need soon.
        limit: What the controller lets it take.
        block_bytes: Memory of one, on all ranks; 0: none of it is given back.
    """

    most: int
    least: int
    needed: int
    limit: int
    block_bytes: int


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
        """Limits the cache from now on, also when there is memory for more; None: it may have all blocks.

        A limit below what running requests need is raised to that, but not above the one that held before.
        """
        use = self.use()
        self._most = blocks if blocks is None else max(blocks, use.least, min(use.needed, use.limit))
        self.adjust()

    def use(self) -> KVUse:
        """Returns what the cache takes now; nothing while the engine is down."""
        scheduler, info = self._engine.scheduler, self._engine.info
        if scheduler is None or info is None:
            return KVUse(0, 0, 0, 0, 0)
        most = info.num_blocks
        return KVUse(
            most,
            min(most, blocks_for(self._engine.facts.context_length)),
            min(most, _needed_blocks(scheduler)),
            most if self._most is None else min(most, self._most),
            _block_bytes(info),
        )

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
        use = CacheUse(
            num_blocks=info.num_blocks,
            num_held=blocks.num_held,
            floor=blocks_for(engine.facts.context_length),
            block_bytes=_block_bytes(info),
        )
        limit = self._room.next_limit(engine.clock(), available, use)
        wanted = limit if self._most is None else min(limit, self._most)
        if wanted < info.num_blocks or blocks.limit < info.num_blocks:  # again: sequences grew into it
            engine.set_kv_limit(wanted, self._most)
        if limit < before:
            log.warning("memory is short: the KV cache is smaller", blocks=limit, available_bytes=available)
        elif before < limit == info.num_blocks:
            log.info("the KV cache has all its blocks again", blocks=limit)


def _needed_blocks(scheduler: Scheduler) -> int:
    """Blocks in tables, and those that the running sequences need for their next tokens."""
    growth = 0
    for sequence in scheduler.running:
        more = min(GROWTH_TOKENS, sequence.max_tokens - sequence.num_output)
        end = max(len(sequence.tokens) + more, sequence.planned + 1)
        growth += max(0, blocks_for(end) - sequence.capacity // BLOCK_SIZE)
    return scheduler.blocks.num_used + growth


def _block_bytes(info: EngineInfo) -> int:
    """Memory of a block on all ranks, with its share of the sliding blocks."""
    if not info.block_bytes:
        return 0
    sliding = info.sliding_bytes * info.num_sliding_blocks / info.num_blocks
    return len(info.ranks) * (info.block_bytes + int(sliding))


class KVLimitCalls:
    """The call of the subject for limits."""

    def __init__(self, group: str, room: KVRoom) -> None:
        self._group = group
        self._room = room

    async def limit_kv(self, asked: LimitKV, _: Message) -> KVLimited:
        """Sets the limit, and returns the one that holds."""
        use = self._room.use()
        if not use.most:
            raise Unavailable(f"the engine of group {self._group!r} is down", reason="engine_down")
        if not use.block_bytes:
            return KVLimited(group=self._group)
        self._room.set_kv_limit(asked.limit_bytes // use.block_bytes if asked.limit_bytes else None)
        use = self._room.use()
        return KVLimited(
            group=self._group,
            limit_bytes=use.limit * use.block_bytes,
            most_bytes=use.most * use.block_bytes,
            most_tokens=use.most * BLOCK_SIZE,
            least_bytes=use.least * use.block_bytes,
            needed_bytes=use.needed * use.block_bytes,
        )
