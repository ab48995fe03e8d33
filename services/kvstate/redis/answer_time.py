"""A limit on the time that a server may take to answer; time in which this process was busy hardly counts.

A timer alone measures both: while other calls compute, answers lie unread in their sockets, and the server
would be taken for away because this process is slow.
"""

import asyncio
from types import TracebackType
from typing import Self

_SLICES = 4  # of the limit; however long the loop stands still, one of them passes


class AnswerTime:
    """`async with AnswerTime(limit_s): ...` raises `TimeoutError` when the server took all of its time.

    The limit passes in slices, each begun when the loop has come to the end of the one before. So before the
    last one ends, the loop has read what the server sent in the time of the others. One call uses it once.
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
            self._limit.reschedule(self._loop.time())  # behind those who got their answer in this round
