"""`/v1/completions` as vLLM, SGLang, llama-cpp-python, TGI and others serve it.

Beyond OpenAI's own fields, a server is sent those that it accepts, also with values that do nothing: what is
left out would get the server's default, or that of the model's files.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from services.worker.guests.port import FinishedBy
from services.worker.guests.remote.wire.dialect import Ask, Piece, TokenLogprob
from services.worker.guests.remote.wire.event_reader import Event
from services.worker.guests.remote.wire.json_events import read_json
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.plan import Alternative

_DONE = b"[DONE]"
_TOKEN_ID = "token_id:"  # how vLLM writes ids in place of texts
_ENDS: Mapping[str | None, FinishedBy] = {"stop": "stop", "length": "length", "eos_token": "stop"}
# fields that a server may refuse, or not know; None: not sent
FIELDS: Final[Mapping[str, Callable[[Ask, int], object]]] = {
    "top_k": lambda ask, no_top_k: ask.sampling.top_k or no_top_k,
    "min_p": lambda ask, _: ask.sampling.min_p,
    "presence_penalty": lambda ask, _: ask.sampling.presence_penalty,
    "frequency_penalty": lambda ask, _: ask.sampling.frequency_penalty,
    "repetition_penalty": lambda ask, _: ask.sampling.repetition_penalty,
    "repeat_penalty": lambda ask, _: ask.sampling.repetition_penalty,
    "seed": lambda ask, _: ask.seed,
    "logit_bias": lambda ask, _: {str(key): bias for key, bias in ask.sampling.logit_bias.items()} or None,
    "logprobs": lambda ask, _: None if ask.sampling.logprobs < 0 else ask.sampling.logprobs,
    "return_tokens_as_token_ids": lambda ask, _: None if ask.sampling.logprobs < 0 else True,
    "ignore_eos": lambda ask, _: ask.sampling.ignore_eos or None,
    "min_tokens": lambda ask, _: ask.sampling.min_tokens or None,
    "add_special_tokens": lambda ask, _: False if isinstance(ask.prompt, str) else None,
    "return_token_ids": lambda ask, _: True,
    "stream_options": lambda ask, _: {"include_usage": True, "continuous_usage_stats": True},
}
# how vLLM takes the form of an answer, newer releases first
FORM_FIELDS: Final[Mapping[str, Callable[[DemandedForm], object]]] = {
    "structured_outputs": lambda form: {"grammar": form.lark},
    "guided_grammar": lambda form: form.lark,
}


class _Usage(msgspec.Struct):
    prompt_tokens: int = -1
    completion_tokens: int = -1


class _Logprobs(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    text: str
    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class OpenAIDialect:
    """See the module.

    Args:
        fields: Those of `FIELDS` that are sent.
        no_top_k: The value of `top_k` that sets no limit.
        token_ids: The server brings token ids; they say all, and its text may lag behind them.
        report: Makes the failure that an error object of the server reports.
        form_field: The one of `FORM_FIELDS` that it follows; empty: none.
    """

    path = "/v1/completions"

    def __init__(
        self,
        *,
        fields: frozenset[str],
        no_top_k: int,
        token_ids: bool,
        report: Callable[[object], ServerError],
        form_field: str = "",
    ) -> None:
        self.fields = fields
        self._form_field = form_field
        self._senders = [(name, make) for name, make in FIELDS.items() if name in fields]
        self._no_top_k = no_top_k
        self._token_ids = token_ids
        self._report = report

    def with_form_field(self, name: str) -> "OpenAIDialect":
        """Returns the same dialect for a server that takes forms of answers in this field."""
        return OpenAIDialect(
            fields=self.fields,
            no_top_k=self._no_top_k,
            token_ids=self._token_ids,
            report=self._report,
            form_field=name,
        )

    def body(self, ask: Ask) -> dict[str, object]:
        """See `Dialect`."""
        body: dict[str, object] = {
            "model": ask.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "stream": True,
        }
        for name, make in self._senders:
            value = make(ask, self._no_top_k)
            if value is not None:
                body[name] = value
        if ask.form is not None and self._form_field:
            body[self._form_field] = FORM_FIELDS[self._form_field](ask.form)
        return body

    def read(self, event: Event) -> Piece:
        """See `Dialect`."""
        if event.data.strip() == _DONE:
            return Piece(done=True)
        chunk = read_json(_DECODER, event.data)
        if chunk.error is not None:
            raise self._report(chunk.error)
        if event.name == b"error":
            raise self._report(event.data.decode(errors="replace"))
        usage = chunk.usage or _Usage()
        if not chunk.choices:
            if chunk.usage is None:
                raise ServerError("sent an event without a choice")
            return Piece(counted=usage.completion_tokens, prompt_tokens=usage.prompt_tokens)
        choice = chunk.choices[0]
        if len(chunk.choices) > 1 or choice.index:
            raise ServerError("sent a choice that was not asked for")
        if self._token_ids and choice.token_ids is None and choice.text:
            raise ServerError("left out the token ids of a text")
        finished = _ENDS.get(choice.finish_reason, "")
        if choice.finish_reason and not finished:
            raise ServerError(f"ended the answer for another reason: {choice.finish_reason[:40]!r}")
        return Piece(
            text=choice.text,
            token_ids=(choice.token_ids or []) if self._token_ids else None,
            logprobs=_read_logprobs(choice.logprobs) if choice.logprobs else (),
            has_logprobs=choice.logprobs is not None,
            finished=finished,
            counted=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
        )


def _read_logprobs(given: _Logprobs) -> list[TokenLogprob]:
    """Return those whose tokens are named by ids; others say nothing of tokens."""
    names, values = given.tokens or [], given.token_logprobs or []
    tops = given.top_logprobs or [None] * len(names)
    found = list[TokenLogprob]()
    for name, value, top in zip(names, values, tops, strict=False):
        token_id = _token_id(name)
        if token_id is None or value is None:
            return []
        alternatives = [
            Alternative(other_id, other)
            for other_name, other in (top or {}).items()
            if (other_id := _token_id(other_name)) is not None
        ]
        alternatives.sort(key=lambda one: -one.logprob)
        found.append(TokenLogprob(token_id=token_id, logprob=value, top=alternatives))
    return found


def _token_id(name: str) -> int | None:
    digits = name.removeprefix(_TOKEN_ID)
    return int(digits) if digits is not name and name.startswith(_TOKEN_ID) and digits.isdecimal() else None
