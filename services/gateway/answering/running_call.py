"""The part of a request that may be ended early: the caller leaves, the gateway stops, or it is cut off.

Each of these cancels the task that answers the request, wherever it waits. At the end of the block the
cancellation becomes an ordinary exception with the reason.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.answering.slow_readers import OpenAnswer, Unread
from services.gateway.http.reply import Reply
from shared.client import GenerationStream
from shared.web.limited_protocol import LimitedProtocol

T = TypeVar("T")


class RunningRequest:
    """The part of a request in which it may be ended early, as an asynchronous context manager.

    Args:
        connection: Tells when the caller leaves.
        all_running: Has this object as long as it may be aborted from outside.
        limit_s: Seconds after which the watcher of readers ends the block. The deadlines of the generations
            come earlier.
        party: For whom it counts.
        reply: Its response.

    Attributes:
        streams: Its generations, for what they hold unread.
    """

    __slots__ = (
        "_all",
        "_connection",
        "_ends_at",
        "_limit_s",
        "_task",
        "party",
        "reason",
        "reply",
        "streams",
    )

    def __init__(
        self,
        connection: LimitedProtocol,
        all_running: set[OpenAnswer],
        limit_s: float,
        party: str,
        reply: Reply,
    ) -> None:
        self.party = party
        self.reply = reply
        self.streams: list[GenerationStream] = []
        self._connection = connection
        self._all = all_running
        self._limit_s = limit_s
        self.reason: Exception | None = None

    def unread(self, now_s: float) -> Unread:
        """See `OpenAnswer`."""
        reply = self.reply
        waited_s = now_s - reply.waits_since if reply.waits_since else 0.0
        behind = max((stream.behind for stream in self.streams), default=0.0)
        frames = sum(stream.unread for stream in self.streams)
        return Unread(self.party, frames + reply.unsent, waited_s, behind, late=now_s >= self._ends_at)

    def abort(self, reason: Exception) -> None:
        """Raises `reason` in the task that is inside the block; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    async def finish_work(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work that must not be cancelled in the middle, and returns its result.

        If the request is ended early meanwhile, the work still finishes; `check_running` tells afterwards.

        Raises:
            Exception: What the work raises.
        """
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.reason is None:
                task.cancel()
                raise
        try:
            return await task
        except Exception as error:  # the caller is gone and cannot be told
            raise asyncio.CancelledError from error

    def check_running(self) -> None:
        """Raises `CancelledError` if the request was ended early; the end of the block raises the reason."""
        if self.reason is not None:
            raise asyncio.CancelledError

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._ends_at = asyncio.get_running_loop().time() + self._limit_s
        self._all.add(self)
        self._connection.on_gone = self._leave
        if self._connection.gone:  # while the body was read
            self._leave()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.discard(self)
        self._connection.on_gone = None
        if self.reason is None:
            return
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self.reason

    def _leave(self) -> None:
        self.abort(ClientDisconnected())
