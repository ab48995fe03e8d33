"""What others ask a leader about sessions: who has the KV, get it here, what was said, and that one is gone.

Text that is known here and not in the store yet, or no more, is given to leaders that go on with the session.
A session may have as many tokens as a context: their blocks are named in slices, between which the leader's
loop goes on, and no further than the answer needs.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from services.worker.leader.error_replies import Replies
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.session_records import SessionRecords
from shared import codec, kv_hash, subjects
from shared.bus.api import Bus, Message
from shared.errors import InvalidRequest, RyzError, SessionNotFound
from shared.messages import (
    ErrorReply,
    HoldersQuery,
    Holding,
    SessionFound,
    SessionGet,
    SessionGone,
    SessionTurn,
    SessionTurns,
    Warmed,
    WarmSession,
    Wire,
)
from shared.messages.sessions import SessionRecord

MAX_ASKED = 16  # questions of all callers after what is in memory that may wait; those above are dropped
MAX_WARMS = 256  # calls to warm a session that may wait
_SLICE = 256  # names that are made before others have their turn; some 0.3 ms


class KVCalls:
    """Handlers of the subjects; each answers, with an `ErrorReply` if it has to.

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
        replies: Replies,
        refuse: Callable[[], RyzError | None],
    ) -> None:
        self._group = group
        self._model = model
        self._tensor_parallel = tensor_parallel
        self._bus = bus
        self._generations = generations
        self._tier = tier
        self._sessions = sessions
        self._replies = replies
        self._refuse = refuse

    async def on_holders(self, message: Message) -> None:
        """How much of a sequence is in this group's memory; only up to the first gap are blocks named."""
        try:
            query = codec.decode(message.data, HoldersQuery)
            num_tokens = codec.num_packed(query.token_ids)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        cached = await self._num_cached(query.token_ids, query.tenant)
        await self._replies.send(
            message,
            Holding(
                group=self._group,
                model=self._model,
                num_tokens=num_tokens,
                cached_tokens=cached * kv_hash.BLOCK_TOKENS,
                tensor_parallel=self._tensor_parallel,
                kv_format=self._tier.names.kv_format,
            ),
        )

    async def on_warm(self, message: Message) -> None:
        """Has a session's blocks fetched, and tells routers that it is here now."""
        try:
            asked = codec.decode(message.data, WarmSession)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        try:
            answer: Wire = await self._warm(asked)
        except RyzError as error:
            answer = ErrorReply(error=error.code, message=error.message, data=error.data)
        await self._replies.send(message, answer)

    async def on_peer(self, message: Message) -> None:
        """What this leader knows of a session, for a leader that cannot have it from the store."""
        try:
            asked = codec.decode(message.data, SessionGet)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        record = self._sessions.vouched(asked.tenant, asked.session_id)
        answer: Wire
        if record is not None:
            answer = SessionFound(record=record)
        else:
            missing = SessionNotFound(f"group {self._group} knows no session {asked.session_id!r}")
            answer = ErrorReply(error=missing.code, message=missing.message)
        await self._replies.send(message, answer)

    async def on_gone(self, message: Message) -> None:
        """A session was deleted: neither its text nor its KV stay here."""
        try:
            gone = codec.decode(message.data, SessionGone)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
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

    async def _warm(self, asked: WarmSession) -> Warmed:
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
