"""What others ask a leader about sessions: who has the KV, get it here, what was said, and that one is gone.

Text that is known here and not in the store yet, or no more, is given to leaders that go on with the session.
A session may have as many tokens as a context: their blocks are named in slices, between which the leader's
loop goes on, and no further than the answer needs.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.session_records import SessionRecords
from shared import codec, kv_hash, subjects
from shared.bus.api import Bus, Message
from shared.errors import InvalidRequest, RyzError, SessionNotFound
from shared.messages import (
    HoldersQuery,
    Holding,
    SessionFound,
    SessionGet,
    SessionGone,
    SessionTurn,
    SessionTurns,
    Warmed,
    WarmSession,
)
from shared.messages.sessions import SessionRecord

MAX_ASKED = 16  # questions of all callers after what is in memory that may wait; those above are dropped
MAX_WARMS = 256  # calls to warm a session that may wait
_SLICE = 256  # names that are made before others have their turn; some 0.3 ms


class KVCalls:
    """The calls of the subjects.

    model, tensor_parallel: what the group is. refuse: why it warms nothing now; None: it does.
    """

    def __init__(
        self,
        group: str,
        *,
        model: str,
        tensor_parallel: int,
        bus: Bus,
        generations: RequestTable,
        tier: KVTier,
        sessions: SessionRecords,
        refuse: Callable[[], RyzError | None],
    ) -> None:
        self._group = group
        self._model = model
        self._tensor_parallel = tensor_parallel
        self._bus = bus
        self._generations = generations
        self._tier = tier
        self._sessions = sessions
        self._refuse = refuse

    async def find_cached(self, query: HoldersQuery, _: Message) -> Holding:
        """How much of a sequence is in this group's memory; only up to the first gap are blocks named."""
        cached = await self._num_cached(query.token_ids, query.tenant)
        return Holding(
            group=self._group,
            model=self._model,
            num_tokens=codec.num_packed(query.token_ids),
            cached_tokens=cached * kv_hash.BLOCK_TOKENS,
            tensor_parallel=self._tensor_parallel,
            kv_format=self._tier.names.kv_format,
        )

    async def warm_session(self, asked: WarmSession, _: Message) -> Warmed:
        """Has a session's blocks fetched, and tells routers that it is here now."""
        refusal = self._refuse()
        if refusal is not None:
            raise refusal
        record = await self._sessions.lookup(asked.tenant, asked.session_id)
        if record is None:
            raise SessionNotFound(f"no session {asked.session_id!r}; it may have expired")
        if record.model != self._model:
            raise InvalidRequest(
                f"session {asked.session_id!r} is of model {record.model}, group {self._group} serves "
                f"{self._model}",
                param="group",
            )
        names = await self._names(record.token_ids, asked.tenant)
        fetched = await self._tier.warm(names)
        scheduler = self._generations.scheduler
        cached = scheduler.blocks.num_found(names) if scheduler is not None else 0
        await self.tell_turns([record])
        return Warmed(
            group=self._group,
            num_tokens=codec.num_packed(record.token_ids),
            cached_tokens=cached * kv_hash.BLOCK_TOKENS,
            fetched_tokens=fetched * kv_hash.BLOCK_TOKENS,
        )

    async def find_record(self, asked: SessionGet, _: Message) -> SessionFound:
        """What this leader knows of a session, for a leader that cannot have it from the store."""
        record = self._sessions.vouched(asked.tenant, asked.session_id)
        if record is None:
            raise SessionNotFound(f"group {self._group} knows no session {asked.session_id!r}")
        return SessionFound(record=record)

    async def forget_session(self, gone: SessionGone, _: Message) -> None:
        """A session was deleted: neither its text nor its KV stay here."""
        names = kv_hash.split(gone.names)
        record = self._sessions.newest(gone.tenant, gone.session_id)
        self._sessions.forget(gone.tenant, gone.session_id)
        if record is not None:  # what others share with it is computed again; better than to leave any of it
            names += await self._names(record.token_ids, gone.tenant)
        scheduler = self._generations.scheduler
        if scheduler is not None:
            scheduler.blocks.drop(names)
            scheduler.write_behind.forget(names)

    async def tell_turns(self, records: list[SessionRecord]) -> None:
        """Turns ended here: routers hear where these sessions are."""
        turns = [
            SessionTurn(
                tenant=record.tenant,
                session_id=record.session_id,
                group=self._group,
                num_tokens=len(record.token_ids) // 4,
            )
            for record in records
        ]
        await self._bus.publish(subjects.SESSION_TURNS, codec.encode(SessionTurns(turns=turns)))

    async def _num_cached(self, token_ids: bytes, tenant: str) -> int:
        """How many of a sequence's blocks are here, from the first on without a gap."""
        scheduler, count = self._generations.scheduler, 0
        if scheduler is None:
            return 0
        for name in self._tier.names.of_packed(token_ids, tenant):
            if not scheduler.blocks.is_cached(name):
                break
            count += 1
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return count

    async def _names(self, token_ids: bytes, tenant: str) -> list[bytes]:
        """The names of a sequence's blocks; others have their turn meanwhile."""
        names: list[bytes] = []
        coming = self._tier.names.of_packed(token_ids, tenant)
        while part := list(islice(coming, _SLICE)):
            names += part
            await asyncio.sleep(0)
        return names


def check_token_ids(query: HoldersQuery, _: Message) -> None:
    """Raises `InvalidRequest` if the packed token ids are cut."""
    codec.num_packed(query.token_ids)
