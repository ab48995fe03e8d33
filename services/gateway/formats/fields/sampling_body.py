"""The fields that chat and text completions share, as OpenAI's clients send them.

Names, types, ranges and meanings of every known field; `docs/chat-completions.md` is made from them. Unknown
fields stay in `model_extra`.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from services.gateway.formats.fields.body_types import FewFields, LenientBody, RequestBody
from services.gateway.formats.fields.field_types import (
    NAME,
    Biases,
    Definition,
    Form,
    Stops,
    StopTokens,
)
from services.gateway.formats.fields.inner_fields import ACCEPTED
from shared.messages.generate import MAX_CHOICES, MAX_LOGPROBS

I32_MAX = 2**31 - 1


_I64 = 2**63


class StreamOptions(LenientBody):
    """Options of a streamed answer."""

    model_config = ConfigDict(json_schema_extra={ACCEPTED: ["include_obfuscation"]})

    include_usage: bool | None = None
    """The last chunk before `[DONE]` has the tokens of the call. Absent: false."""
    include_event_ids: bool | None = None
    """Events have ids (`id:` lines), by which the stream can be resumed. Absent: they do if the request has
    the header `X-Stream-Grace`."""


class SamplingBody(RequestBody):
    """Fields of both routes. A field that is null counts as absent, as OpenAI's clients expect."""

    model: Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
    """The name of a model, as `/v1/models` lists it."""
    stream: bool | None = None
    """The answer comes as server-sent events while it is made. Absent: false."""
    stream_options: FewFields[StreamOptions | None] = None
    """See below; needs `stream`. Absent: nothing more is sent."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Spread of the choice among tokens; 0 takes the likeliest. Absent: the model's default."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only the likeliest tokens that together have this probability. Absent: the model's default."""
    top_k: Annotated[int, Field(ge=-1, le=I32_MAX)] | None = None
    """Only so many likeliest tokens; 0 or -1: no limit. Absent: the model's default."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only tokens with this share of the likeliest one's probability or more. Absent: the model's default."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Makes tokens that the prompt or answer has less likely, above 1. Absent: the model's default."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Taken from the logit of each token that the answer has already. Absent: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Taken from the logit of a token for each time that the answer has it. Absent: 0."""
    logit_bias: Biases = Field(default_factory=dict)
    """Added to the logits of up to 1024 tokens, by their ids: -100 to 100. Absent: nothing is added."""
    seed: Annotated[int, Field(ge=-_I64, lt=_I64)] | None = None
    """The same request with the same seed and weights gets the same answer. Absent: drawn at random."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """The number of answers. Absent: 1."""
    stop: Stops = Field(default_factory=list)
    """Up to 16 texts of 1 to 256 characters that end the answer and are not part of it. Absent: none."""
    max_tokens: Annotated[int, Field(ge=1, le=I32_MAX)] | None = None
    """Tokens of an answer at most. Absent: as many as the model's context has room for."""
    stop_token_ids: StopTokens | None = None
    """Up to 64 tokens that end the answer and are not part of its text. Absent: only the model's own."""
    min_tokens: Annotated[int, Field(ge=0, le=I32_MAX)] | None = None
    """Tokens before which no token ends the answer. Absent: 0."""
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """Log probabilities of the prompt's tokens with so many alternatives, as vLLM has it; not streamed.
    Absent: none."""
    truncate_prompt_tokens: Annotated[int | None, Field(ge=1, le=I32_MAX)] = None
    """Keeps so many last tokens of the prompt. Absent: a prompt that does not fit is refused."""
    ignore_eos: bool | None = None
    """The model's own tokens for the end do not end the answer. Absent: false."""
    response_format: Form = None
    """`text`, `json_object` or `json_schema`: the answer has that form. Absent: any text."""
    structured_outputs: Form = None
    """vLLM's field for it, with `json`, `regex`, `choice` or `grammar`. Absent: any text."""
    guided_json: Definition = None
    """vLLM's older name for a JSON Schema. Absent: any text."""
    guided_regex: str | None = None
    """vLLM's older name for a regular expression. Absent: any text."""
    guided_choice: list[str] | None = None
    """vLLM's older name for a choice of texts. Absent: any text."""
    guided_grammar: str | None = None
    """vLLM's older name for a grammar (Lark or EBNF). Absent: any text."""
    json_schema: Definition = None
    """llama.cpp's name for a JSON Schema. Absent: any text."""
    grammar: str | None = None
    """llama.cpp's name for a grammar. Absent: any text."""
    return_token_ids: bool | None = None
    """The answer has the token ids of its prompt and of its choices, as vLLM has it. Absent: false."""
    user: str | None = None
    """With `RYZ_SESSION_FROM=user`, requests with the same one go to the same group if they name no session.
    Absent: nothing changes."""
    prompt_cache_key: str | None = None
    """Requests with the same one go to the same group if they name no session; see `RYZ_SESSION_FROM`.
    Absent: nothing changes."""
    metadata: dict[str, Any] | None = None
    """Accepted; it changes nothing. Absent: nothing changes."""
    store: bool | None = None
    """Accepted; completions are not stored for later retrieval. Absent: nothing changes."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    """There is one tier: a chat completion that asks for any says `default`. Absent: none is named."""
    priority: Annotated[int, Field(ge=-_I64, lt=_I64)] | None = None
    """The lower, the earlier the request is served, as vLLM has it; at least -`RYZ_MAX_PRIORITY`.
    Absent: 0."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds for the whole answer, at most `RYZ_MAX_TIMEOUT_S`; the header `X-Request-Timeout` comes first.
    Absent: `RYZ_DEFAULT_TIMEOUT_S`."""
    session_id: str | None = None
    """The session of the turn ([sessions.md](sessions.md)); the header `X-Session-Id` comes first.
    Absent: a chat completion begins a new session."""
    session_must_exist: bool | None = None
    """Refuse the turn with a 404 if there is no such session. Absent: false."""
