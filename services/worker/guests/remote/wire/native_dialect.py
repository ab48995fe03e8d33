"""`/completion` of llama.cpp's own server, which takes and brings token ids."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from services.worker.guests.port import FinishedBy
from services.worker.guests.remote.wire.dialect import Ask, Piece, TokenLogprob
from services.worker.guests.remote.wire.event_reader import Event
from services.worker.guests.remote.wire.json_events import read_json
from services.worker.guests.remote.wire.native_forms import form_fields
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.plan import Alternative

_ENDS: Mapping[str, FinishedBy] = {"eos": "stop", "limit": "length"}
# in the order of our own sampling; by default it has the temperature last, and samplers of its own
_SAMPLERS = ["penalties", "temperature", "top_k", "top_p", "min_p"]


class _Alternative(msgspec.Struct):
    id: int
    logprob: float


class _Probability(msgspec.Struct):
    id: int
    logprob: float
    top_logprobs: list[_Alternative] = []


class _Chunk(msgspec.Struct):
    content: str | None = None
    tokens: list[int] | None = None
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = -1
    tokens_evaluated: int = -1
    truncated: bool = False
    completion_probabilities: list[_Probability] = []
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class NativeDialect:
    """See the module.

    Args:
        context_length: Of a sequence; the repetition penalty looks at so many tokens, which is all of them.
        report: Makes the failure that an error object of the server reports.
        by_lark: It was built with llguidance, and follows forms in Lark.
    """

    path = "/completion"

    def __init__(
        self, context_length: int, report: Callable[[object], ServerError], *, by_lark: bool = False
    ) -> None:
        self._context_length = context_length
        self._report = report
        self._by_lark = by_lark

    def with_lark(self) -> "NativeDialect":
        """Returns the same dialect for a server that was built with llguidance."""
        return NativeDialect(self._context_length, self._report, by_lark=True)

    def body(self, ask: Ask) -> dict[str, object]:
        """See `Dialect`."""
        sampling = ask.sampling
        body: dict[str, object] = {
            "model": ask.model,  # a router of several models reads it
            "prompt": ask.prompt,
            "n_predict": ask.max_tokens,
            "samplers": _SAMPLERS,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": 0 if sampling.repetition_penalty == 1.0 else self._context_length,
            "ignore_eos": sampling.ignore_eos,
            "cache_prompt": True,
            "return_tokens": True,
            "stream": True,
        }
        if ask.seed is not None:
            body["seed"] = ask.seed
        if sampling.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in sampling.logit_bias.items()]
        if sampling.logprobs >= 0:
            body["n_probs"] = max(1, sampling.logprobs)
        if ask.form is not None:
            body |= form_fields(ask.form, by_lark=self._by_lark)
        return body

    def read(self, event: Event) -> Piece:
        """See `Dialect`."""
        if event.data.strip() == b"[DONE]":
            return Piece(done=True)
        chunk = read_json(_DECODER, event.data)
        if event.name == b"error" or chunk.error is not None:
            raise self._report(chunk.error or event.data.decode(errors="replace"))
        if chunk.content is None:
            raise ServerError("sent an event without content")
        if chunk.truncated:
            raise ServerError("left out a part of the sequence, which is too long for its context")
        finished = _ENDS.get(chunk.stop_type, "") if chunk.stop else ""
        if chunk.stop and not finished:
            raise ServerError(f"ended the answer for another reason: {chunk.stop_type[:40]!r}")
        return Piece(
            text=chunk.content,
            token_ids=chunk.tokens or [],
            text_rules=True,
            logprobs=[_logprob(one) for one in chunk.completion_probabilities],
            has_logprobs=bool(chunk.completion_probabilities),
            finished=finished,
            counted=chunk.tokens_predicted,
            prompt_tokens=chunk.tokens_evaluated,
            done=chunk.stop,
        )


def _logprob(one: _Probability) -> TokenLogprob:
    top = [Alternative(other.id, other.logprob) for other in one.top_logprobs]
    return TokenLogprob(token_id=one.id, logprob=one.logprob, top=top)
