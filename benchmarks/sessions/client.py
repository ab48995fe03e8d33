"""One turn of a session over HTTP, streamed: when its first text came, which group answered, from what KV.

Bytes are noted as they come and decoded when the answer is complete, so that the event loop is free for other
turns meanwhile.
"""

import time
from dataclasses import dataclass

import httpx

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.sse import read_stream
from benchmarks.sessions.traffic import TextMessage

_ANSWER_S = 60.0
_FULL = "context_length_exceeded"  # the reason of a refusal


class ConversationFull(BenchError):
    """A turn and the session's conversation before it do not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class StreamedTurn:
    """The answer to one turn.

    Attributes:
        session: The session's rank.
        reason: Why the router chose it.
        cached: Prompt tokens that were not computed.
        fetched: Those of `cached` that came from the store.
        first_s: Seconds until the first text.
    """

    session: int
    group: str
    reason: str
    prompt: int
    cached: int
    fetched: int
    completion: int
    first_s: float

    @property
    def computed(self) -> int:
        """Tokens that the group computed for it."""
        return self.prompt - self.cached + self.completion


class SessionClient:
    """Connections to one gateway, as many as `clients` ask at once."""

    def __init__(self, url: str, model: str, clients: int) -> None:
        self._model = model
        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=_ANSWER_S, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask_turn(
        self, session: int, messages: list[TextMessage], tokens: int, *, anew: bool
    ) -> StreamedTurn:
        """Send a turn's messages and read an answer of `tokens` tokens.

        Args:
            session: The session's rank, which is its id.
            anew: Whether the messages are the whole conversation.

        Raises:
            ConversationFull: What the session has said before leaves no room for the turn.
            BenchError: The answer is an error, or not complete; equal problems have equal texts.
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
            raise BenchError(f"the connection broke: {type(error).__name__}") from error
        if reply.status_code != httpx.codes.OK:
            reason = reply.headers.get("x-ryz-reason", "no reason given")
            refused = ConversationFull if reason == _FULL and not anew else BenchError
            raise refused(f"status {reply.status_code}: {reason}")
        answer = read_stream(parts, began_s)
        usage = answer.usage
        if usage is None or not answer.times or usage.completion_tokens != tokens:
            said = parts[-1][1][-200:].decode(errors="replace").strip() if parts else "nothing"
            raise BenchError(f"not a complete answer: it ended with {said}")
        return StreamedTurn(
            session=session,
            group=reply.headers.get("x-ryz-group", ""),
            reason=reply.headers.get("x-ryz-route", ""),
            prompt=usage.prompt_tokens,
            cached=usage.prompt_tokens_details.cached_tokens,
            fetched=usage.prompt_tokens_details.fetched_tokens,
            completion=usage.completion_tokens,
            first_s=answer.times[0] - began_s,
        )
