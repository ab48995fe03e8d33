"""Waits for the answers to a question that many services may answer, however many there are."""

import asyncio
from collections.abc import Callable

QUIET_S = 0.3  # without an answer, after which no more are expected
FIRST_S = 1.0  # for the first answer; a busy machine may need that long
LATE_S = 2.0  # for a service that is known to be there
LONGEST_S = 5.0
_POLL_S = 0.05


class Gathering:
    """The answers to one question: call `note_answer` for each, then await `wait_for_answers`.

    Args:
        incomplete: Returns whether a service that is known to be there has not answered. Such a service is
            late rather than gone: on a busy machine an answer may take longer than `QUIET_S`.
    """

    def __init__(self, incomplete: Callable[[], bool] = lambda: False) -> None:
        self._incomplete = incomplete
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._until = self._began + FIRST_S
        self._no_responders = asyncio.Event()

    def note_answer(self) -> None:
        """An answer has come; others may follow."""
        self._until = min(self._loop.time() + QUIET_S, self._began + LONGEST_S)

    def note_no_responders(self) -> None:
        """The broker says that no service listens."""
        self._no_responders.set()

    async def wait_for_answers(self) -> None:
        """Returns when no service listens, or when no more answers are expected."""
        no_responders = asyncio.ensure_future(self._no_responders.wait())
        while not no_responders.done() and (left_s := self._left_s()) > 0:
            await asyncio.wait({no_responders}, timeout=left_s)
        no_responders.cancel()

    def _left_s(self) -> float:
        """Return how long to wait before looking again, in seconds; 0 or less: no longer."""
        now = self._loop.time()
        if now < self._until or not self._incomplete():
            return self._until - now
        return min(_POLL_S, self._began + LATE_S - now)
