"""The end of a turn: the session's next record is made and committed, and the request completes.

For a session id that the caller gave, `Done` waits a moment for the record to be stored, so that the next
turn finds it on any group; for an id that was made for the request it does not. `Done` says `stored` only
after the store has confirmed it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.turn_context import TurnAnswer, TurnContext, next_record
from services.worker.leader.context import LeaderContext
from services.worker.leader.sessions.commits import CommitOutcome
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.records import SessionRecords
from shared.codec import pack_tokens
from shared.messages import SessionOutcome, SessionRecord


class TurnFinisher:
    """Commits the turns of generations that have all their tokens.

    Args:
        deliveries: Expect the answers of the turns.
        commit_wait_s: For which `Done` waits for the store.
    """

    def __init__(
        self,
        context: LeaderContext,
        sessions: SessionRecords,
        deliveries: DeliveryTracker,
        commit_wait_s: float,
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._deliveries = deliveries
        self._commit_wait_s = commit_wait_s

    def finish_turn(self, generation: Generation, complete: Callable[[Generation], None]) -> None:
        """Commits the turn, if it is one of a session, and calls `complete` now or soon."""
        turn, record = generation.turn, None
        if turn is None:
            complete(generation)
            return
        if turn.commits:
            record = self._record_of(generation, turn)
        generation.session = outcome_of(turn, None, self._sessions.writer.trouble)
        if record is None:
            complete(generation)
            return
        self._deliveries.expect_delivery(generation.request)
        given = turn.session.given
        stored = self._sessions.commit(record, joins=turn.session.if_version < 0, hurry=given)
        if not given:
            complete(generation)
            return

        def complete_once() -> None:
            timer.cancel()
            if not generation.ended:
                commit = stored.result() if stored.done() else None
                generation.session = outcome_of(turn, commit, self._sessions.writer.trouble)
                complete(generation)

        timer = asyncio.get_running_loop().call_later(self._commit_wait_s, complete_once)
        stored.add_done_callback(lambda _: complete_once())

    def _record_of(self, generation: Generation, turn: TurnContext) -> SessionRecord:
        choice, context = generation.choices[0], self._context
        return next_record(
            turn,
            generation.request,
            TurnAnswer(choice.message(), pack_tokens(choice.sequence.tokens)),
            model=context.model,
            group=context.group,
            now_ms=time.time_ns() // 1_000_000,
            adapter=generation.adapter.fingerprint if generation.adapter is not None else "",
        )


def outcome_of(turn: TurnContext, commit: CommitOutcome | None, trouble: str) -> SessionOutcome:
    """Returns what `Done` reports of the turn.

    Args:
        commit: The store's answer; None if there is none yet.
        trouble: Why the last write of records failed, if it did.
    """
    stored: Literal["stored", "pending", "conflict", "not_stored"] = "stored"
    reason = ""
    if turn.stored:
        pass  # when its request came for the first time
    elif not turn.commits:
        stored, reason = "not_stored", "store_away"
    elif commit is None:
        stored, reason = "pending", trouble
    elif commit.outcome == "stale":
        stored, reason = "conflict", "session_changed"
    elif commit.outcome != "stored":
        stored, reason = "not_stored", commit.outcome
    return SessionOutcome(
        state="continued" if turn.version or turn.replaces else "new",
        replaced=turn.replaces is not None,
        turns=turn.number + 1 + (commit.turns if commit is not None else 0),
        version=(turn.replaces or turn).version + 1 + (commit.versions if commit is not None else 0),
        stored=stored,
        reason=reason,
    )
