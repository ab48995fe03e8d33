"""Reads streamed completions of both routes from bytes and the times at which they came.

Bytes are decoded when an answer is complete, so that reading them costs the measurement as little as it can.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from benchmarks.lib.measuring import BenchError

DONE = b"[DONE]"


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    fetched_tokens: int = 0


class StreamUsage(msgspec.Struct):
    """Token counts of an answer."""

    completion_tokens: int
    prompt_tokens: int = 0
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Delta(msgspec.Struct):
    content: str | None = None


class _ChunkChoice(msgspec.Struct):
    text: str | None = None
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChunkChoice] = []
    usage: StreamUsage | None = None


_chunk = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class StreamedAnswer:
    """One answer; times in seconds, on the clock of the parts it was read from.

    Attributes:
        sent: When the request was sent.
        times: When each piece of text came; each token that completes a character brings one.
        ended: When the finish reason came, with the last token; 0 without one.
        usage: The gateway's count; None if it sent none.
        done: Whether `[DONE]` was the last event.
        last: Data of the last event.
    """

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage: StreamUsage | None = None
    done: bool = False
    last: bytes = b""

    @property
    def tokens(self) -> int:
        """Tokens generated, by the gateway's count."""
        return self.usage.completion_tokens if self.usage else 0


def events(parts: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes, bytes]]:
    """Yield each complete server-sent event that has data: the time of its last byte, its id and its data.

    Args:
        parts: Pieces of a body, each with the time at which it came.
    """
    rest = b""
    for when, part in parts:
        *whole, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            event_id = data = b""
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                elif line.startswith(b"id:"):
                    event_id = line[3:].strip()
            if data:
                yield when, event_id, data


def read_stream(parts: Iterable[tuple[float, bytes]], sent: float = 0.0) -> StreamedAnswer:
    """Read a whole streamed answer.

    Raises:
        BenchError: An event is no completion chunk.
    """
    found = StreamedAnswer(sent)
    for when, _, data in events(parts):
        found.last, found.done = data, data == DONE
        if found.done:
            continue
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError as error:
            raise BenchError(f"an event is no completion chunk: {error}") from error
        found.usage = chunk.usage or found.usage
        for choice in chunk.choices:
            if choice.text or choice.delta.content:
                found.times.append(when)
            if choice.finish_reason is not None:
                found.ended = when
    return found
