"""The end of a turn: the session's next record is made, and `Done` goes out.

For a session id that the caller gave, `Done` waits a moment for the record to be stored, so that the next
turn finds it on any group; for an id that was made for the request it does not.
"""

import asyncio
import time

from services.worker.domain.request import Generation
from services.worker.domain.session_context import next_record
from services.worker.leader.generations import Generations
from services.worker.leader.sessions import Sessions
from shared.codec import pack_tokens


class Finisher:
    """Called when a generation has all its tokens."""

    def __init__(
        self, group: str, model: str, generations: Generations, sessions: Sessions, commit_wait_s: float
    ) -> None:
        self._group = group
        self._model = model
        self._generations = generations
        self._sessions = sessions
        self._commit_wait_s = commit_wait_s

    def finish(self, generation: Generation) -> None:
        """Commits the turn, if it is one of a session, and completes the request now or soon."""
        turn = generation.turn
        if turn is None or not turn.commits:
            self._generations.complete(generation)
            return
        choice = generation.choices[0]
        record = next_record(
            turn,
            tenant=generation.request.tenant,
            model=self._model,
            group=self._group,
            answer="".join(choice.text),
            token_ids=pack_tokens(choice.sequence.tokens),
            now_ms=time.time_ns() // 1_000_000,
            request_id=generation.request.request_id,
        )
        stored = self._sessions.commit(record)
        if not turn.session.given:
            self._generations.complete(generation)
            return

        def complete() -> None:
            timer.cancel()
            if not generation.ended:
                self._generations.complete(generation)

        timer = asyncio.get_running_loop().call_later(self._commit_wait_s, complete)
        stored.add_done_callback(lambda _: complete())
