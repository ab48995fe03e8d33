"""Ownership of stored blocks by sessions: gathered while sequences run, then committed.

A commit to the KV state service replaces what the session held before, so it names all leading
blocks that are known to be stored. No request waits for it; blocks that cannot be committed in time expire
in the store and are computed again. Blocks that the store has lost are written once more, if still here.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.generation.generation import Generation
from services.worker.leader.context import LeaderContext
from shared.errors import RyzError
from shared.messages import BlocksCommitted, BlocksFound, HeldBlocks, SessionRecord
from shared.messages.kv.blocks import MAX_NAMES

log = structlog.get_logger(__name__)
MAX_BATCH = 64
MAX_BATCH_NAMES = 16_384  # a quarter of what a message may have, by the usual limit
MAX_HOLDINGS = 8192
FEW_BLOCKS = 8  # stored since the last commit of a running sequence, for which it is committed again
LINGER_S = 10.0  # for the last blocks of an ended sequence to be written, and again to be committed
Key = tuple[str, int]  # request id, choice


class BlockIndex(Protocol):
    """The KV state service, as far as a leader needs it for blocks.

    Both calls raise `Unavailable` when the service does not answer in time.
    """

    async def find(
        self, names: Sequence[bytes], *, lease_ms: int, timeout_s: float, parts: int = 0
    ) -> BlocksFound:
        """Returns how many leading names are stored.

        Args:
            names: Of a sequence's blocks, from the first on.
            lease_ms: Time for which the blocks found are not evicted.
            parts: Parts of a block. If given, blocks that are stored and not committed yet count, too.
        """
        ...

    async def commit(self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float) -> BlocksCommitted:
        """Registers blocks that were written, and the sessions that hold them."""
        ...


@dataclass(slots=True, eq=False)
class _Holding:
    """The blocks of one sequence.

    Attributes:
        session_id: Empty for sequences that no session continues.
        names: Grows with the sequence.
        committed: How many names were committed last.
        until: When they are committed for the last time, at the latest; 0 while the sequence runs.
        rewritten: Whether the store had lost some of them, and they were written anew.
    """

    tenant: str
    session_id: str
    priority: int
    names: list[bytes]
    committed: int = 0
    until: float = 0.0
    rewritten: bool = False


@dataclass(slots=True, eq=False)
class _Due:
    """Names of a holding that are to be committed; with `last` there will be no more."""

    key: Key
    holding: _Holding
    names: list[bytes] = field(default_factory=list)
    last: bool = False


class BlockOwnership:
    """The blocks of running sequences and of kept sessions.

    Args:
        pause: Stops the writing of blocks for that many seconds.
    """

    def __init__(
        self,
        context: LeaderContext,
        index: BlockIndex,
        *,
        timeout_s: float,
        pause: Callable[[float], None],
    ) -> None:
        self._group = context.group
        self._index = index
        self._metrics = context.metrics
        self._clock = context.clock
        self._timeout_s = timeout_s
        self._pause = pause
        self._held: dict[Key, _Holding] = {}
        self._silent_until = 0.0
        self._parts = 1

    @property
    def num_held(self) -> int:
        """Sequences whose blocks are still to be committed."""
        return len(self._held)

    def open_store(self, parts: int) -> None:
        """Begins with an engine whose blocks consist of so many parts, one for each KV head."""
        self._parts = parts

    def begin_generation(self, generation: Generation) -> None:
        """Follows the sequences of a generation that is with the scheduler."""
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

    def end_generation(self, generation: Generation) -> None:
        """Commits what a generation wrote when all of it is stored."""
        for choice in generation.choices:
            holding = self._held.get((generation.key, choice.sequence.choice))
            if holding is not None:
                holding.until = self._clock() + LINGER_S

    def keep_session(self, record: SessionRecord, names: Sequence[bytes]) -> None:
        """Commits blocks of a session of which nothing runs, when they are written."""
        key = (f"session/{record.tenant}/{record.session_id}", 0)  # no `request_key` looks like this
        self._held[key] = _Holding(
            record.tenant, record.session_id, 0, list(names), until=self._clock() + LINGER_S
        )

    def close_store(self) -> None:
        """Forgets everything: the engine is down, and what was being written is lost."""
        self._held.clear()

    async def commit_due(self, behind: WriteBehind) -> None:
        """Commits everything that is due. Raises `RyzError` when the service does not answer."""
        while self._clock() >= self._silent_until and (batch := self._due(behind)):
            answer = await self._commit(batch)
            if answer.pause_ms:  # perhaps nothing was registered; committed again when there may be room
                self._silent_until = self._clock() + answer.pause_ms / 1000
                self._pause(answer.pause_ms / 1000)
                return
            for due in batch:
                due.holding.committed = len(due.names)
            missing = len({name for due in batch for name in due.names}) - answer.stored
            if missing > 0 and not answer.over_quota:  # else the answer does not say whose are missing
                await self._write_again(behind, batch)
            for due in batch:
                done = due.holding.committed == len(due.names)
                if due.last and done and self._held.get(due.key) is due.holding:
                    del self._held[due.key]

    async def commit_last(self, behind: WriteBehind | None) -> None:
        """Commits what is written, since no more will be; within the time of one call, or not at all."""
        for holding in self._held.values():
            holding.until = self._clock() - 1.0
        if behind is not None:
            with suppress(RyzError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self.commit_due(behind)

    async def commit_forever(self, behind: Callable[[], WriteBehind | None], interval_s: float) -> None:
        """Commits what is due at each interval, until cancelled.

        Args:
            behind: Returns the write-behind of the running engine; None while there is no store.
            interval_s: Seconds between two commits.
        """
        while True:
            await asyncio.sleep(interval_s)
            now = behind()
            if now is None or not now.enabled:
                continue
            try:
                await self.commit_due(now)
            except RyzError as error:
                self._metrics.kv_commits_failed.inc()
                log.debug("blocks not committed", error=error.message)
                await asyncio.sleep(1.0)

    async def _commit(self, batch: Sequence[_Due]) -> BlocksCommitted:
        held = [
            HeldBlocks(
                tenant=due.holding.tenant,
                session_id=due.holding.session_id,
                priority=due.holding.priority,
                names=b"".join(due.names),
                parts=self._parts,
            )
            for due in batch
        ]
        answer = await self._index.commit(self._group, held, timeout_s=self._timeout_s)
        self._metrics.kv_evicted.inc(answer.evicted)
        self._metrics.kv_over_quota.inc(len(answer.over_quota))
        return answer

    async def _write_again(self, behind: WriteBehind, batch: Sequence[_Due]) -> None:
        """Writes the blocks of a batch anew that the store does not have, once for each holding.

        A store that does not keep them, such as those of a deleted session, must not get them for ever.
        """
        lost = 0
        for due in batch:
            found = (await self._index.find(due.names, lease_ms=0, timeout_s=self._timeout_s)).count
            names, holding = due.names[found:], due.holding
            if not names:
                continue
            lost += len(names)
            behind.forget(names)
            holding.committed = min(holding.committed, found)
            if not holding.rewritten:
                holding.rewritten = True
                behind.add(names)
                holding.until = self._clock() + LINGER_S if holding.until else 0.0
        if lost:
            log.info("blocks that were written are not in the store", missing=lost)

    def _due(self, behind: WriteBehind) -> list[_Due]:
        """Returns at most a batch of what is to be committed now; drops holdings that are done."""
        batch: list[_Due] = []
        now, room = self._clock(), MAX_BATCH_NAMES
        for key, holding in list(self._held.items()):
            ended = holding.until > 0
            if not ended and len(holding.names) - holding.committed < FEW_BLOCKS:
                continue
            count = min(MAX_NAMES, behind.num_known_of(holding.names))
            waits = count < len(holding.names) and behind.is_due(holding.names[count])
            last = ended and (not waits or now > holding.until)
            if ended and now > holding.until + LINGER_S:
                del self._held[key]
            elif count - holding.committed >= (1 if last else FEW_BLOCKS):
                if len(batch) == MAX_BATCH or (batch and count > room):
                    break
                batch.append(_Due(key, holding, holding.names[:count], last))
                room -= count
            elif last:
                del self._held[key]
        return batch
