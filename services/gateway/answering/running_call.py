"""The part of a call that may be ended early: the caller leaves, the gateway stops, or it is cut off.

Each of these cancels the task that answers the call, wherever it waits. At the end of the block the
cancellation becomes an ordinary exception with the reason.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from services.gateway.admission.caller import Caller
from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.answering.events.slow_readers import OpenAnswer, Unread
from shared.client import GenerationStream

STANDING_S = 10.0  # that a busy machine may delay the deadlines of generations, which say more about the end
T = TypeVar("T")


class RunningCall:
    """The part of a call in which it may be ended early, as an asynchronous context manager.

    Args:
        caller: Its connection tells when the caller leaves.
        all_running: Has this object as long as it may be aborted from outside.
        limit_s: Seconds after which the watcher of readers ends the block if a piece of the answer waits for
            the reader; `STANDING_S` later in any case. The deadlines of the generations come earlier.

    Attributes:
        streams: Its generations, for what they hold unread.
        reason: Why it was ended early; None: it was not.
    """

    __slots__ = ("_all", "_caller", "_ends_at", "_limit_s", "_task", "reason", "streams")

    def __init__(self, caller: Caller, all_running: set[OpenAnswer], limit_s: float) -> None:
        self.streams: list[GenerationStream] = []
        self.reason: Exception | None = None
        self._caller = caller
        self._all = all_running
        self._limit_s = limit_s

    def unread(self, now_s: float) -> Unread:
        """See `OpenAnswer`."""
        delivery = self._caller.delivery
        waited_s = now_s - delivery.waits_since if delivery.waits_since else 0.0
        behind = max((stream.behind for stream in self.streams), default=0.0)
        frames = sum(stream.unread for stream in self.streams)
        late = now_s >= self._ends_at + (0.0 if delivery.waits_since else STANDING_S)
        return Unread(self._caller.party, frames + delivery.unsent, waited_s, behind, late=late)

    def abort(self, reason: Exception) -> None:
        """Raises `reason` in the task that is inside the block; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    def is_of(self, key_id: str, tenant: str) -> bool:
        """See `OpenAnswer`."""
        return self._caller.key_id == key_id if key_id else self._caller.tenant == tenant

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

    def begin(self) -> None:
        """Begins the block in the running task."""
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._ends_at = asyncio.get_running_loop().time() + self._limit_s
        self._all.add(self)
        connection = self._caller.connection
        connection.on_gone = self._leave
        if connection.gone:  # while the body was read
            self._leave()

    def end(self, error: BaseException | None) -> None:
        """Ends the block; raises the reason in place of the cancellation if it was ended early."""
        self._all.discard(self)
        self._caller.connection.on_gone = None
        if self.reason is None:
            return
        if self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise self.reason

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def _leave(self) -> None:
        self.abort(ClientDisconnected())
