"""The fields of a plain chat completion's body, for `chat/call.py`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.gateway.formats.chat.schema import MAX_MESSAGES
from shared.messages.base import ModelName
from shared.messages.generate import MAX_CHOICES, MAX_STOPS

_I32_MAX = 2**31 - 1
_Stop = Annotated[str, Meta(min_length=1, max_length=256)]
_Count = Annotated[int, Meta(ge=1, le=_I32_MAX)]


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message with text alone."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: Annotated[str, Meta(max_length=256)] | None = None


class PlainOptions(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Options of streams."""

    include_usage: bool | None = None
    include_event_ids: bool | None = None


class PlainChat(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Fields of `ChatCompletionRequest`, within its bounds or closer ones."""

    model: ModelName
    messages: Annotated[list[PlainMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: PlainOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_I32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    session_must_exist: bool | None = None
