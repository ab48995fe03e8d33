"""Which stored blocks belong to which session: gathered while sequences run, told to the KV state service.

What was told replaces what the session held before, so it is told in whole: all leading blocks that are known
to be stored. Nobody waits for it; what cannot be told in time expires in the store and is computed again.
What the store turns out not to have is written once more, if it is still here.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from services.worker.domain.generation.request import Generation
from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.metrics import WorkerMetrics
from shared.errors import RyzError
from shared.messages import BlocksCommitted, BlocksFound, HeldBlocks, SessionRecord
from shared.messages.blocks import MAX_NAMES

log = structlog.get_logger(__name__)
MAX_BATCH = 64
MAX_BATCH_NAMES = 16_384  # a quarter of what a message may have, by the usual limit
MAX_HOLDINGS = 8192
FEW_BLOCKS = 8  # stored since the last time, for which a running sequence is told again
LINGER_S = (
    10.0  # how long the last blocks of a sequence that ended may take to be written, and again to be told
)
Key = tuple[str, int]  # request id, choice


class BlockIndex(Protocol):
    """The KV state service, as far as a leader needs it for blocks; `Unavailable` when it does not answer."""

    async def find(
        self, names: Sequence[bytes], *, lease_ms: int, timeout_s: float, parts: int = 0
    ) -> BlocksFound:
        """How many leading names are stored; those found are not evicted for so long.

        With `parts`, of which a block consists, also those that nobody has told of yet.
        """
        ...

    async def commit(self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float) -> BlocksCommitted:
        """Tells which blocks were written, and who holds them."""
        ...


@dataclass(slots=True, eq=False)
class _Holding:
    """One sequence's blocks. `names` grows with the sequence; `told` is how many were told last.

    until: told for the last time then at the latest; 0: the sequence runs. rewritten: the store had lost some
    of them before, and they were written anew.
    """

    tenant: str
    session_id: str
    priority: int
    names: list[bytes]
    told: int = 0
    until: float = 0.0
    rewritten: bool = False


@dataclass(slots=True, eq=False)
class _Due:
    """The first `names` of a holding are to be told; `last`: there will be no more."""

    key: Key
    holding: _Holding
    names: list[bytes] = field(default_factory=list)
    last: bool = False


class BlockOwnership:
    """parts: KV heads of a block. pause: called with the seconds for which nothing is to be written."""

    def __init__(
        self,
        group: str,
        index: BlockIndex,
        metrics: WorkerMetrics,
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
        self._held: dict[Key, _Holding] = {}
        self._silent_until = 0.0

    def begin(self, generation: Generation) -> None:
        """The sequences of a generation are with the scheduler."""
        request = generation.request
        for choice in generation.choices:
            # a session goes on from its first choice; the others are kept by their age
            session = request.session if generation.turn is not None and choice.sequence.choice == 0 else None
            self._held[generation.key, choice.sequence.choice] = _Holding(
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
            holding = self._held.get((generation.key, choice.sequence.choice))
            if holding is not None:
                holding.until = self._clock() + LINGER_S

    def keep(self, record: SessionRecord, names: Sequence[bytes]) -> None:
        """A session holds these blocks, though nothing of it runs: they are told when they are written."""
        key = (f"session/{record.tenant}/{record.session_id}", 0)  # no tenant and request are called so
        self._held[key] = _Holding(
            record.tenant, record.session_id, 0, list(names), until=self._clock() + LINGER_S
        )

    def clear(self) -> None:
        """The engine is gone, and with it what was being written."""
        self._held.clear()

    async def tell(self, behind: WriteBehind) -> None:
        """Tells everything that is due. Raises `RyzError` when the service does not answer."""
        while self._clock() >= self._silent_until and (batch := self._due(behind)):
            answer = await self._commit(batch)
            if answer.pause_ms:  # nothing was registered, perhaps; it is told again when there may be room
                self._silent_until = self._clock() + answer.pause_ms / 1000
                self._pause(answer.pause_ms / 1000)
                return
            for due in batch:
                due.holding.told = len(due.names)
            missing = len({name for due in batch for name in due.names}) - answer.stored
            if missing > 0 and not answer.over_quota:  # else it is not said whose are missing
                await self._write_again(behind, batch)
            for due in batch:
                told = due.holding.told == len(due.names)
                if due.last and told and self._held.get(due.key) is due.holding:
                    del self._held[due.key]

    async def tell_last(self, behind: WriteBehind | None) -> None:
        """Tells what is written, since nothing more will be; within the time of one call, or not at all."""
        for holding in self._held.values():
            holding.until = self._clock() - 1.0
        if behind is not None:
            with suppress(RyzError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self.tell(behind)

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

    async def _commit(self, batch: Sequence[_Due]) -> BlocksCommitted:
        held = [
            HeldBlocks(
                tenant=due.holding.tenant,
                session_id=due.holding.session_id,
                priority=due.holding.priority,
                names=b"".join(due.names),
                parts=self.parts,
            )
            for due in batch
        ]
        answer = await self._index.commit(self._group, held, timeout_s=self._timeout_s)
        self._metrics.kv_evicted.inc(answer.evicted)
        self._metrics.kv_over_quota.inc(len(answer.over_quota))
        return answer

    async def _write_again(self, behind: WriteBehind, batch: Sequence[_Due]) -> None:
        """Looks which blocks of a batch are not in the store. Once for each holding they are written anew:
        a store that does not keep them, as those of a deleted session, is not to get them for ever.
        """
        lost = 0
        for due in batch:
            found = (await self._index.find(due.names, lease_ms=0, timeout_s=self._timeout_s)).count
            names, holding = due.names[found:], due.holding
            if not names:
                continue
            lost += len(names)
            behind.forget(names)
            holding.told = min(holding.told, found)
            if not holding.rewritten:
                holding.rewritten = True
                behind.add(names)
                holding.until = self._clock() + LINGER_S if holding.until else 0.0
        if lost:
            log.info("blocks that were written are not in the store", missing=lost)

    def _due(self, behind: WriteBehind) -> list[_Due]:
        """What is to be told now: at most a batch. Holdings that have nothing more to tell leave."""
        batch: list[_Due] = []
        now, room = self._clock(), MAX_BATCH_NAMES
        for key, holding in list(self._held.items()):
            ended = holding.until > 0
            if not ended and len(holding.names) - holding.told < FEW_BLOCKS:
                continue
            count = min(MAX_NAMES, behind.num_known_of(holding.names))
            waits = count < len(holding.names) and behind.is_due(holding.names[count])
            last = ended and (not waits or now > holding.until)
            if ended and now > holding.until + LINGER_S:  # nobody would hear of it
                del self._held[key]
            elif count - holding.told >= (1 if last else FEW_BLOCKS):
                if len(batch) == MAX_BATCH or (batch and count > room):
                    break
                batch.append(_Due(key, holding, holding.names[:count], last))
                room -= count
            elif last:
                del self._held[key]
        return batch
