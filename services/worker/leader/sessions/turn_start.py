"""The beginning of a session's turn: it waits for the turn before it, and gets the session's history."""

import asyncio

from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.turn_context import (
    TurnContext,
    appends,
    check_conditions,
    in_place_of_last,
    new_turn,
    repeats,
    turn_of,
)
from services.worker.leader.sessions.peer_turns import PeerTurns
from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_lines import TurnLines
from shared.errors import Unavailable
from shared.flow.backoff import Backoff
from shared.messages import GenerateRequest, SessionRecord

RETRY_S = (0.05, 0.5)  # first and longest pause between two questions for a history


class TurnStarter:
    """Begins turns.

    Args:
        lines: Lets one turn of a session run at a time.
        peers: Know which turns run, and which answers did not reach their callers, in any group.
    """

    def __init__(self, lines: TurnLines, records: SessionRecords, peers: PeerTurns) -> None:
        self._lines = lines
        self._records = records
        self._peers = peers

    @staticmethod
    def needs_lookup(request: GenerateRequest) -> bool:
        """Whether a session record has to be looked up first."""
        return request.messages is not None and request.session is not None and request.session.given

    def yield_s(self, generation: Generation) -> float:
        """Seconds for which a turn waits behind others of its session; see `TurnLines`."""
        return self._lines.yield_s(generation)

    def begin_new(self, generation: Generation) -> TurnContext | None:
        """Begins the turn of a session whose id was made for it, so that no record has to be looked up."""
        self._lines.enter_now(generation)
        generation.session_version = 0
        return new_turn(generation.request)

    async def begin_turn(self, generation: Generation, last_group: str) -> TurnContext:
        """Begins a turn of a session whose id the caller gave.

        Args:
            last_group: Had the last turn, as far as the router knew; empty if that was this group.

        Raises:
            Overloaded: Too many turns of the session wait, or this one has waited too long.
            Conflict: The session is not as the caller demands.
            SessionNotFound: There must be a session, and there is none.
            Unavailable: The turn goes on from a record that cannot be read now.
        """
        await self._lines.enter_line(generation)
        request = generation.request
        session, messages = request.session, request.messages
        assert session is not None
        assert messages is not None
        record: SessionRecord | None = None
        adds = appends(messages, session)
        needed = adds or session.must_exist or session.if_version >= 0
        if last_group and adds and not (request.attempt or request.call_key or request.continues):
            await self._peers.wait_for_same(request, last_group)
        try:
            record = await self._read_history(request.tenant, session.session_id, last_group, needed=needed)
        except Unavailable:
            if needed:
                raise
            return TurnContext(session, messages, commits=False)
        resumed_at = request.resume.session_version if request.resume is not None else -1
        turn = turn_of(request, record, resumed_at)
        if resumed_at >= 0 or turn.stored:
            return turn
        check_conditions(session, record)
        if record is None or request.call_key or request.continues or not repeats(messages, session, record):
            return turn
        lost = await self._peers.was_lost(record)
        return (in_place_of_last(messages, session, record) or turn) if lost else turn

    async def _read_history(
        self, tenant: str, session_id: str, last_group: str, *, needed: bool
    ) -> SessionRecord | None:
        """Looks the session's record up; one that is needed is asked for again while it cannot be read.

        The KV state service, its store or the group with the last turn may be starting again, or slow.
        """
        loop, pauses = asyncio.get_running_loop(), Backoff(*RETRY_S)
        until = loop.time() + (self._records.history_wait_s if needed else 0.0)
        while True:
            try:
                return await self._records.lookup(tenant, session_id, last_group)
            except Unavailable:
                pause_s = pauses.next_s()
                if loop.time() + pause_s > until:
                    raise
            await asyncio.sleep(pause_s)
