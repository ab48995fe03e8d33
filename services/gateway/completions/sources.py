"""Where the text of one streamed call comes from: one generation, or one for each of several prompts.

Hides the difference from the one who writes the answer. Several generations are read by a task each, through
one bounded queue.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.client import GenerationStream
from shared.messages import Tokens

_QUEUED_PER_PROMPT = 8
_FRAMES_AT_ONCE = 128  # made into events in one go; some 10 ms with all log probabilities


@dataclass(frozen=True, slots=True)
class Piece:
    """All that is there of a prompt's text; the prompts of a call are numbered from 0."""

    prompt: int
    frames: list[Tokens]


class Source(Protocol):
    """The text of one call."""

    async def next(self) -> Piece | None:
        """The next piece; None after the last.

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


async def _read(stream: GenerationStream) -> list[Tokens]:
    """Frames that are there, a number of them; waits when there is none. Empty after the last."""
    frame = await stream.next_frame()
    if frame is None:
        return []
    frames = [frame]
    assembly = stream.assembly
    while assembly.ready and len(frames) < _FRAMES_AT_ONCE:
        frames.append(assembly.take_ready())
    return frames


class _One:
    def __init__(self, stream: GenerationStream) -> None:
        self._stream = stream

    async def next(self) -> Piece | None:
        frames = await _read(self._stream)
        return Piece(0, frames) if frames else None

    @property
    def ended(self) -> bool:
        assembly = self._stream.assembly
        return assembly.finished and assembly.error is None and not assembly.ready

    async def close(self) -> None:
        pass


class _Several:
    def __init__(self, streams: Sequence[GenerationStream]) -> None:
        self._open = len(streams)
        # no frames: that prompt has come to its end
        self._queue: asyncio.Queue[tuple[int, list[Tokens] | Exception]] = asyncio.Queue(
            _QUEUED_PER_PROMPT * len(streams)
        )
        self._tasks = [
            asyncio.create_task(self._pump(prompt, stream)) for prompt, stream in enumerate(streams)
        ]

    async def next(self) -> Piece | None:
        while self._open:
            prompt, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item:
                return Piece(prompt, item)
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
            while frames := await _read(stream):
                await self._queue.put((prompt, frames))
            await self._queue.put((prompt, []))
        except Exception as error:  # handed to the reader, who decides
            await self._queue.put((prompt, error))
