"""One running generation, as its caller sees it."""

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shared.client.generation.attempts import Interruption
from shared.client.generation.generation_state import Assembly
from shared.client.generation.results import Completion, gather
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Tokens, Usage

if TYPE_CHECKING:
    from shared.client.inference_client import InferenceClient

MAX_WHOLE_FRAMES = 1_000_000  # of an answer that is wanted as a whole; the leader's limits are tighter


class GenerationStream:
    """What `InferenceClient.submit` returns: an async context manager, and an iterator of lists of `Delta`.

    Leaving the block before the end cancels the generation. Iterating raises the error that ended it, one of
    `shared.errors`. `usage` is complete after the last delta. One reader at a time.
    """

    __slots__ = (
        "_client",
        "_waiter",
        "_whole",
        "assembly",
        "data",
        "deadline",
        "headers",
        "request",
        "scheduled",
    )

    def __init__(
        self,
        client: "InferenceClient",
        request: GenerateRequest,
        assembly: Assembly,
        *,
        data: bytes,
        headers: Mapping[str, str],
        deadline: float,
        whole: bool,
    ) -> None:
        self.request = request
        self.assembly = assembly
        self.data = data
        self.headers = headers
        self.deadline = deadline
        self.scheduled = math.inf  # when the client's timer comes to it
        self._client = client
        self._whole = whole
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def accepted(self) -> Accepted | None:
        """The leader's `Accepted` frame, once it came; see `wait_accepted`."""
        return self.assembly.accepted

    @property
    def group(self) -> str:
        """The group that runs it; empty until one has it."""
        return self.assembly.group

    @property
    def session_id(self) -> str:
        """The session's id: the leader's word, else the request's; empty without a session."""
        accepted = self.assembly.accepted
        if accepted is not None and accepted.session_id:
            return accepted.session_id
        return self.request.session.session_id if self.request.session else ""

    @property
    def usage(self) -> Usage:
        """Token counts; zeros until the end."""
        return self.assembly.usage

    @property
    def session(self) -> SessionOutcome | None:
        """What became of the turn, once the end has come; None: it is none of a session."""
        return self.assembly.session

    @property
    def unread(self) -> int:
        """About how many bytes of memory the frames take that were not read."""
        return self.assembly.unread

    @property
    def behind(self) -> float:
        """How far the reader is behind, from 0 to 1, where the request is cancelled."""
        return self.assembly.behind

    @property
    def finished(self) -> bool:
        """The end has arrived, read or not."""
        return self.assembly.finished

    async def wait_accepted(self) -> Accepted:
        """Waits until a group has the request; raises what ended it instead."""
        while self.assembly.accepted is None:
            if self.assembly.error is not None:
                raise self.assembly.error
            await self._wait()
        return self.assembly.accepted

    @property
    def interruptions(self) -> list[Interruption]:
        """The groups that were lost in mid-stream so far."""
        return self.assembly.attempts.interruptions

    async def next_frame(self) -> Tokens | None:
        """The next frame; None after the last. Raises what ended the generation instead.

        Nothing is lost when it is cancelled while it waits.
        """
        assembly = self.assembly
        while not assembly.ready:
            if assembly.error is not None:
                raise assembly.error
            if assembly.finished:
                return None
            await self._wait()
        return assembly.take_ready()

    async def frames(self) -> AsyncIterator[Tokens]:
        """Iterates over whole frames, numbers included; raises like the iteration over deltas."""
        while True:
            frame = await self.next_frame()
            if frame is None:
                return
            yield frame

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        frame = await self.next_frame()
        if frame is None:
            raise StopAsyncIteration
        return frame.deltas

    async def completion(self) -> Completion:
        """Waits for the end and returns what was not read yet as a whole; raises the error that ended it."""
        self._whole = True
        assembly = self.assembly
        assembly.max_ready = MAX_WHOLE_FRAMES
        while not assembly.finished:
            await self._wait()
        if assembly.error is not None:
            raise assembly.error
        choices = gather(assembly.ready, self.request.sampling.n)
        assembly.ready.clear()
        assembly.unread = 0
        return Completion(
            self.request_id, self.session_id, self.group, choices, assembly.usage, assembly.session
        )

    async def confirm(self) -> None:
        """Says that the caller of the turn is there and gets the end of its answer; see `confirms`."""
        if self.request.confirms:
            await self._client.confirm(self)

    async def cancel(self, reason: str = "") -> None:
        """Ends the generation, unless it has ended; idempotent."""
        if not self.assembly.finished:
            await self._client.cancel(self, reason)

    def wake(self) -> None:
        """Called by the client when something arrived."""
        waiter = self._waiter
        if waiter is None or (self._whole and not self.assembly.finished):
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(None)

    async def open(self) -> Self:
        """Publishes the request, once."""
        await self._client.open(self)
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        await self._client.open(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cancel("the caller left")
        self._client.forget(self)

    async def _wait(self) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None
