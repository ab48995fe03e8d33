"""The frames of one streamed call, from one generation or from one for each of several prompts.

Several generations are read by a task each, through one bounded queue; the sender of the answer sees one
source.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.client import GenerationStream
from shared.messages import Tokens

_QUEUED_PER_PROMPT = 8
_FRAMES_AT_ONCE = 128  # made into events without a pause; some 10 ms with all log probabilities


@dataclass(frozen=True, slots=True)
class PromptFrames:
    """The frames of a prompt that are ready; the prompts of a call are numbered from 0."""

    prompt: int
    frames: list[Tokens]


class FrameSource(Protocol):
    """The frames of one call."""

    async def next_frames(self) -> PromptFrames | None:
        """The next frames; None after the last. Cancelling it while it waits loses nothing.

        Raises:
            RyzError: A generation failed.
        """
        ...

    @property
    def ended(self) -> bool:
        """Returns whether `next_frames` is known to return None."""
        ...

    async def close(self) -> None:
        """Stops reading; does not end the generations."""
        ...


def frame_source(streams: Sequence[GenerationStream]) -> FrameSource:
    """The source for generations that run already."""
    return _One(streams[0]) if len(streams) == 1 else _Several(streams)


class _One:
    def __init__(self, stream: GenerationStream) -> None:
        self._stream = stream

    async def next_frames(self) -> PromptFrames | None:
        frames = await self._stream.next_frames(_FRAMES_AT_ONCE)
        return PromptFrames(0, frames) if frames else None

    @property
    def ended(self) -> bool:
        return self._stream.exhausted

    async def close(self) -> None:
        pass


class _Several:
    def __init__(self, streams: Sequence[GenerationStream]) -> None:
        self._open = len(streams)
        # no frames: the prompt's generation is complete
        self._queue: asyncio.Queue[tuple[int, list[Tokens] | Exception]] = asyncio.Queue(
            _QUEUED_PER_PROMPT * len(streams)
        )
        self._tasks = [
            asyncio.create_task(self._pump(prompt, stream)) for prompt, stream in enumerate(streams)
        ]

    async def next_frames(self) -> PromptFrames | None:
        while self._open:
            prompt, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item:
                return PromptFrames(prompt, item)
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
        await self._queue.put((prompt, await self._read(prompt, stream)))

    async def _read(self, prompt: int, stream: GenerationStream) -> list[Tokens] | Exception:
        """Puts frames into the queue; returns the last entry: none, or the error for `next_frames`."""
        try:
            while frames := await stream.next_frames(_FRAMES_AT_ONCE):
                await self._queue.put((prompt, frames))
        except Exception as error:
            return error
        return []
