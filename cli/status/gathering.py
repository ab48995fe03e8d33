"""Waits for the answers to a question that many services may answer, however many there are."""

import asyncio

QUIET_S = 0.3  # without an answer, after which no more are expected
FIRST_S = 1.0  # for the first answer; a busy machine may need that long
LONGEST_S = 5.0


class Gathering:
    """The answers to one question: call `note_answer` for each, then await `wait_for_answers`."""

    def __init__(self) -> None:
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
        while not no_responders.done() and (left_s := self._until - self._loop.time()) > 0:
            await asyncio.wait({no_responders}, timeout=left_s)
        no_responders.cancel()
