"""A limit on the time that a server takes to answer, not on the time for which this process is busy.

A plain timer measures both: while other calls compute, answers lie unread in their sockets, and a fast server
would seem to be away.
"""

import asyncio
from types import TracebackType
from typing import Self

_SLICES = 4  # of the limit; however long the loop is blocked, at most one of them passes meanwhile


class AnswerTime:
    """Raises `TimeoutError` in `async with AnswerTime(limit_s)` when the server takes longer; for one use.

    The limit is made of slices. Each begins when the loop handles the end of the one before, so before the
    last one ends, the loop has read what the server sent during the others.
    """

    __slots__ = ("_left", "_limit", "_loop", "_slice_s", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._slice_s = limit_s / _SLICES
        self._left = _SLICES
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._slice_s, self._slice_passed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _slice_passed(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._slice_s, self._slice_passed)
        else:
            self._limit.reschedule(self._loop.time())  # after the handling of answers that came in this round
