"""The end of a turn: the session's next record is made, and `Done` goes out.

For a session id that the caller gave, `Done` waits a moment for the record to be stored, so that the next
turn finds it on any group; for an id that was made for the request it does not. `Done` says what is known
then: `stored` only after the store's word.
"""

import asyncio
import time
from typing import Literal

from services.worker.domain.generation.request import Generation
from services.worker.domain.generation.turn_context import TurnContext, next_record
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.session_commits import CommitOutcome
from services.worker.leader.sessions.session_records import SessionRecords
from shared.codec import pack_tokens
from shared.messages import SessionOutcome, SessionRecord


class TurnFinisher:
    """Called when a generation has all its tokens."""

    def __init__(
        self,
        group: str,
        model: str,
        *,
        generations: RequestTable,
        sessions: SessionRecords,
        deliveries: DeliveryTracker,
        commit_wait_s: float,
    ) -> None:
        self._group = group
        self._model = model
        self._generations = generations
        self._sessions = sessions
        self._deliveries = deliveries
        self._commit_wait_s = commit_wait_s

    def finish(self, generation: Generation) -> None:
        """Commits the turn, if it is one of a session, and completes the request now or soon."""
        turn, record = generation.turn, None
        if turn is None:
            self._generations.complete(generation)
            return
        if turn.commits:
            record = self._record_of(generation, turn)
        generation.session = outcome_of(turn, None, self._sessions.store_trouble)
        if record is None:
            self._generations.complete(generation)
            return
        self._deliveries.expect(generation.request)
        stored = self._sessions.commit(record, joins=turn.session.if_version < 0)
        if not turn.session.given:
            self._generations.complete(generation)
            return

        def complete() -> None:
            timer.cancel()
            if not generation.ended:
                commit = stored.result() if stored.done() else None
                generation.session = outcome_of(turn, commit, self._sessions.store_trouble)
                self._generations.complete(generation)

        timer = asyncio.get_running_loop().call_later(self._commit_wait_s, complete)
        stored.add_done_callback(lambda _: complete())

    def _record_of(self, generation: Generation, turn: TurnContext) -> SessionRecord:
        choice = generation.choices[0]
        return next_record(
            turn,
            tenant=generation.request.tenant,
            model=self._model,
            group=self._group,
            answer="".join(choice.text),
            token_ids=pack_tokens(choice.sequence.tokens),
            now_ms=time.time_ns() // 1_000_000,
            request_id=generation.request.request_id,
            call_key=generation.request.call_key,
            call_digest=generation.request.call_digest,
        )


def outcome_of(turn: TurnContext, commit: CommitOutcome | None, trouble: str) -> SessionOutcome:
    """What the caller is told of its turn.

    Args:
        turn: of the request.
        commit: what the store said; None: it has not yet.
        trouble: why, if that is known.
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
