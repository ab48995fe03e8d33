"""Calls about sessions: fetch a session's KV, return its record, forget it.

A record that is known here, and not in the store yet or no longer, is given to leaders that continue the
session.
"""

from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.fleet.work_gate import WorkGate
from services.worker.leader.kv_tier.block_naming import name_blocks
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.sessions.peer_turns import PeerTurns
from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_announcer import TurnAnnouncer
from shared import codec, kv_hash
from shared.bus.api import Message
from shared.errors import InvalidRequest, SessionNotFound
from shared.messages import SessionFound, SessionGet, SessionGone, TurnState, Warmed, WarmSession

MAX_WARMING = 8  # sessions that are fetched at once because of calls
MAX_WARMS = 256  # calls to warm a session that may wait


class LeaderSessionCalls:
    """The calls of the warm, peer and session-gone subjects."""

    def __init__(
        self,
        context: LeaderContext,
        engine: EngineState,
        kv_tier: KVTier,
        sessions: SessionRecords,
        gate: WorkGate,
        *,
        announcer: TurnAnnouncer,
        peer_turns: PeerTurns,
    ) -> None:
        self._context = context
        self._engine = engine
        self._kv_tier = kv_tier
        self._sessions = sessions
        self._gate = gate
        self._announcer = announcer
        self._peer_turns = peer_turns

    async def warm_session(self, asked: WarmSession, _: Message) -> Warmed:
        """Fetches the blocks of a session, and announces to routers that the session is here now.

        Raises:
            SessionNotFound: There is no such session.
            InvalidRequest: The session is of another model.
            Unavailable: The group takes no work, or the session store does not answer.
        """
        refusal = self._gate.refusal()
        if refusal is not None:
            raise refusal
        record = await self._sessions.lookup(asked.tenant, asked.session_id)
        if record is None:
            raise SessionNotFound(f"no session {asked.session_id!r}; it may have expired")
        context = self._context
        if record.model != context.model:
            raise InvalidRequest(
                f"session {asked.session_id!r} is of model {record.model}, group {context.group} serves "
                f"{context.model}",
                param="group",
            )
        names = await name_blocks(self._engine, record.token_ids, asked.tenant, record.adapter)
        fetched = await self._kv_tier.fetch_blocks(names)
        scheduler = self._engine.scheduler
        cached = scheduler.blocks.num_found(names) if scheduler is not None else 0
        await self._announcer.announce([record])
        return Warmed(
            group=context.group,
            num_tokens=codec.num_packed(record.token_ids),
            cached_tokens=cached * kv_hash.BLOCK_TOKENS,
            fetched_tokens=fetched * kv_hash.BLOCK_TOKENS,
        )

    async def find_record(self, asked: SessionGet, _: Message) -> SessionFound | TurnState:
        """Returns what this leader knows of a session or of its turns, for a leader that has the next one."""
        if asked.said:
            return self._peer_turns.answer(asked)
        record = self._sessions.vouched(asked.tenant, asked.session_id)
        if record is None:
            raise SessionNotFound(f"group {self._context.group} knows no session {asked.session_id!r}")
        return SessionFound(record=record)

    async def forget_session(self, gone: SessionGone, _: Message) -> None:
        """Removes text and KV of a session that was deleted."""
        names = kv_hash.split(gone.names)
        record = self._sessions.newest(gone.tenant, gone.session_id)
        self._sessions.forget(gone.tenant, gone.session_id)
        if record is not None:  # blocks that other sessions share are computed again; none may stay
            names += await name_blocks(self._engine, record.token_ids, gone.tenant, record.adapter)
        scheduler = self._engine.scheduler
        if scheduler is not None:
            scheduler.blocks.drop(names)
            scheduler.write_behind.forget(names)
        self._kv_tier.prefixes.host.revoke(names)
