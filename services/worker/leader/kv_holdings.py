"""Which stored blocks belong to which session: gathered while sequences run, told to the KV state service.

What was told replaces what the session held before, so it is told in whole: all leading blocks that are known
to be stored. Nobody waits for it; what cannot be told in time expires in the store and is computed again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from services.worker.domain.request import Generation
from services.worker.domain.write_behind import WriteBehind
from services.worker.metrics import Metrics
from shared.errors import RyzError
from shared.messages import BlocksCommitted, BlocksFound, HeldBlocks

log = structlog.get_logger(__name__)
MAX_BATCH = 64
MAX_HOLDINGS = 8192
FEW_BLOCKS = 8  # stored since the last time, for which a running sequence is told again
LINGER_S = 10.0  # how long the last blocks of a sequence that ended may take to be written


class BlockIndex(Protocol):
    """The KV state service, as far as a leader needs it for blocks; `Unavailable` when it does not answer."""

    async def find(self, names: Sequence[bytes], *, lease_ms: int, timeout_s: float) -> BlocksFound:
        """How many leading names are stored; those found are not evicted for so long."""
        ...

    async def commit(self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float) -> BlocksCommitted:
        """Tells which blocks were written, and who holds them."""
        ...


@dataclass(slots=True, eq=False)
class _Holding:
    """One sequence's blocks. `names` grows with the sequence; `told` is how many were told last."""

    tenant: str
    session_id: str
    priority: int
    names: list[bytes]
    told: int = 0
    until: float = 0.0  # told for the last time then at the latest; 0: the sequence runs


class Holdings:
    """parts: KV heads of a block. pause: called with the seconds for which nothing is to be written."""

    def __init__(
        self,
        group: str,
        index: BlockIndex,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        timeout_s: float,
        pause: Callable[[float], None],
    ) -> None:
        self.parts = 1
        self._group = group
        self._index = index
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._pause = pause
        self._held: dict[tuple[str, int], _Holding] = {}

    def begin(self, generation: Generation) -> None:
        """The sequences of a generation are with the scheduler."""
        request = generation.request
        for choice in generation.choices:
            # a session goes on from its first choice; the others are kept by their age
            session = request.session if generation.turn is not None and choice.sequence.choice == 0 else None
            self._held[request.request_id, choice.sequence.choice] = _Holding(
                request.tenant,
                session.session_id if session else "",
                request.priority,
                choice.sequence.block_names,
            )
        while len(self._held) > MAX_HOLDINGS:
            del self._held[next(iter(self._held))]

    def end(self, generation: Generation) -> None:
        """A generation ended; what it wrote is told when it is all there."""
        for choice in generation.choices:
            holding = self._held.get((generation.request.request_id, choice.sequence.choice))
            if holding is not None:
                holding.until = self._clock() + LINGER_S

    def clear(self) -> None:
        """The engine is gone, and with it what was being written."""
        self._held.clear()

    async def tell(self, behind: WriteBehind) -> None:
        """Tells everything that is due. Raises `RyzError` when the service does not answer."""
        while batch := self._due(behind):
            held = [
                HeldBlocks(
                    tenant=holding.tenant,
                    session_id=holding.session_id,
                    priority=holding.priority,
                    names=b"".join(holding.names[:count]),
                    parts=self.parts,
                )
                for _, holding, count in batch
            ]
            answer = await self._index.commit(self._group, held, timeout_s=self._timeout_s)
            for _, holding, count in batch:
                holding.told = count
            self._metrics.kv_evicted.inc(answer.evicted)
            self._metrics.kv_over_quota.inc(len(answer.over_quota))
            if answer.pause_ms:
                self._pause(answer.pause_ms / 1000)
            named = {name for _, holding, count in batch for name in holding.names[:count]}
            if answer.stored < len(named):
                refused = {place for place in answer.over_quota if 0 <= place < len(batch)}
                lost = [h.names[:n] for place, (_, h, n) in enumerate(batch) if place not in refused]
                log.info("blocks that were written are not in the store", missing=len(named) - answer.stored)
                for names in lost:
                    behind.forget(names)
                    behind.add(names)

    async def run(self, behind: Callable[[], WriteBehind | None], interval_s: float) -> None:
        """Tells what is due, for ever. Run it as a task; cancel it to end it."""
        while True:
            await asyncio.sleep(interval_s)
            now = behind()
            if now is None or not now.enabled:
                continue
            try:
                await self.tell(now)
            except RyzError as error:
                self._metrics.kv_commits_failed.inc()
                log.debug("blocks not told", error=error.message)
                await asyncio.sleep(1.0)

    def _due(self, behind: WriteBehind) -> list[tuple[tuple[str, int], _Holding, int]]:
        """What is to be told now: at most a batch. Holdings that are over leave."""
        batch = []
        now = self._clock()
        for key, holding in list(self._held.items()):
            count = behind.num_known_of(holding.names)
            new = count - holding.told
            settled = count == len(holding.names) or not behind.is_due(holding.names[count])
            if holding.until and (settled or now > holding.until):
                del self._held[key]
                due = new > 0
            else:
                due = new >= FEW_BLOCKS
            if due:
                batch.append((key, holding, count))
                if len(batch) == MAX_BATCH:
                    break
        return batch
