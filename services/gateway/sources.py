"""Where the text of one streamed call comes from: one generation, or one for each of several prompts.

Hides the difference from the one who writes the answer. Several generations are read by a task each, through
one bounded queue.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from shared.client import GenerationStream
from shared.messages import Delta

_QUEUED_PER_PROMPT = 8


class Source(Protocol):
    """The deltas of one call."""

    async def next(self) -> tuple[int, list[Delta]] | None:
        """The number of a prompt and all that is there of its text; None after the last.

        Raises what ended a generation early. May be cancelled while it waits; nothing is lost by that.
        """
        ...

    @property
    def ended(self) -> bool:
        """True when it is known that `next` will return None."""
        ...

    async def close(self) -> None:
        """Stops reading; the generations are their owner's to end."""
        ...


def source_of(streams: Sequence[GenerationStream]) -> Source:
    """The source for these generations, which run already."""
    return _One(streams[0]) if len(streams) == 1 else _Several(streams)


async def _read(stream: GenerationStream) -> list[Delta]:
    """All deltas that are there; waits when there is none. Raises `StopAsyncIteration` after the last."""
    deltas = await anext(stream)
    ready = stream.assembly.ready
    if not ready:
        return deltas
    deltas = list(deltas)
    while ready:
        deltas += ready.popleft().deltas
    return deltas


class _One:
    def __init__(self, stream: GenerationStream) -> None:
        self._stream = stream

    async def next(self) -> tuple[int, list[Delta]] | None:
        try:
            return 0, await _read(self._stream)
        except StopAsyncIteration:
            return None

    @property
    def ended(self) -> bool:
        assembly = self._stream.assembly
        return assembly.finished and assembly.error is None and not assembly.ready

    async def close(self) -> None:
        pass


class _Several:
    def __init__(self, streams: Sequence[GenerationStream]) -> None:
        self._open = len(streams)
        # None: that prompt has come to its end
        self._queue: asyncio.Queue[tuple[int, list[Delta] | Exception | None]] = asyncio.Queue(
            _QUEUED_PER_PROMPT * len(streams)
        )
        self._tasks = [
            asyncio.create_task(self._pump(prompt, stream)) for prompt, stream in enumerate(streams)
        ]

    async def next(self) -> tuple[int, list[Delta]] | None:
        while self._open:
            prompt, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return prompt, item
            self._open -= 1
        return None

    @property
    def ended(self) -> bool:
        return self._open == 0

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, prompt: int, stream: GenerationStream) -> None:
        try:
            with suppress(StopAsyncIteration):
                while True:
                    await self._queue.put((prompt, await _read(stream)))
            await self._queue.put((prompt, None))
        except Exception as error:  # handed to the reader, who decides
            await self._queue.put((prompt, error))
