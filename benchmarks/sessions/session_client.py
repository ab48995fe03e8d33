"""One turn of a session over HTTP, streamed: when its first text came, which group answered, from what KV.

Bytes are noted as they come and looked at when the answer is complete, so that the loop is free for others.
"""

import time
from dataclasses import dataclass

import httpx
import msgspec

from benchmarks.sessions.session_traffic import Message

_ANSWER_S = 60.0


class TurnFailed(Exception):
    """An answer that is not what was asked for; the text says why, in words that group with others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """cached: prompt tokens that need not be computed, `fetched` of them from the store. Times in seconds.

    began_s: on `time.perf_counter`'s clock; first_s: from there until the first text.
    """

    session: int
    group: str
    reason: str
    prompt: int
    cached: int
    fetched: int
    completion: int
    began_s: float
    first_s: float

    @property
    def computed(self) -> int:
        """Tokens that the group computed for it."""
        return self.prompt - self.cached + self.completion


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    fetched_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class SessionClient:
    """Connections to one gateway, as many as `clients` ask at once; close it at the end."""

    def __init__(self, url: str, model: str, clients: int) -> None:
        self._model = model
        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=_ANSWER_S, trust_env=False)

    async def close(self) -> None:
        """Lets go of the connections."""
        await self._http.aclose()

    async def turn(self, session: int, messages: list[Message], tokens: int, *, anew: bool) -> Answer:
        """Says something and gets `tokens` tokens; `anew`: the messages are the whole conversation.

        Raises:
            TurnFailed: the answer is an error, or not complete.
        """
        body = {
            "model": self._model, "messages": messages, "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        mode = "replace" if anew else "append"
        headers = {"X-Session-Id": f"session-{session}", "X-Session-Mode": mode}
        began_s, parts = time.perf_counter(), list[tuple[float, bytes]]()
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
                async for data in reply.aiter_raw():
                    parts.append((time.perf_counter(), data))
        except httpx.HTTPError as error:
            raise TurnFailed(f"the connection broke: {type(error).__name__}") from error
        if reply.status_code != httpx.codes.OK:
            reason = reply.headers.get("x-ryz-reason", "no reason given")
            raise TurnFailed(f"status {reply.status_code}: {reason}")
        first_at, usage = _read(parts)
        if usage is None or not first_at or usage.completion_tokens != tokens:
            said = parts[-1][1][-200:].decode(errors="replace").strip() if parts else "nothing"
            raise TurnFailed(f"not a complete answer: it ended with {said}")
        return Answer(
            session=session,
            group=reply.headers.get("x-ryz-group", ""),
            reason=reply.headers.get("x-ryz-route", ""),
            prompt=usage.prompt_tokens,
            cached=usage.prompt_tokens_details.cached_tokens,
            fetched=usage.prompt_tokens_details.fetched_tokens,
            completion=usage.completion_tokens,
            began_s=began_s,
            first_s=first_at - began_s,
        )


def _read(parts: list[tuple[float, bytes]]) -> tuple[float, _Usage | None]:
    """When the first text came (0: never), and the usage that the last event told."""
    first_at, usage, rest = 0.0, None, b""
    for when, data in parts:
        *events, rest = (rest + data).split(b"\n\n")
        for event in (whole.rpartition(b"\n")[2] for whole in events):  # an id may stand before
            if not event.startswith(b"data: {"):
                continue
            try:
                chunk = _chunk.decode(event.removeprefix(b"data: "))
            except msgspec.DecodeError as error:
                raise TurnFailed(f"an event is no chat completion chunk: {error}") from error
            usage = chunk.usage or usage
            if not first_at and any(choice.delta.content for choice in chunk.choices):
                first_at = when
    return first_at, usage
