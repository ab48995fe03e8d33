"""The body of `POST /v1/embeddings`, as OpenAI's clients send it, with the fields that vLLM added.

Checks names, types and ranges. An error of one input names it, as in `input[3]`.
"""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from services.gateway.formats.fields.body_types import RequestBody
from services.gateway.formats.fields.field_types import NAME

Input = str | list[int]
_I32_MAX = 2**31 - 1
_IDS = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]], msgspec.Meta(min_length=1)]
_EMPTY = "must not be empty: there is nothing to embed"
_KINDS = "must be a string, a list of token ids, or a list of those"


def _inputs_of(value: Any) -> list[Input]:
    if isinstance(value, str) or (isinstance(value, list) and value and _is_number(value[0])):
        return [_input_of(value, "")]
    if not isinstance(value, list):
        raise _wrong(_KINDS)
    if not value:
        raise _wrong(_EMPTY)
    return [_input_of(item, f"[{index}]") for index, item in enumerate(value)]


def _input_of(value: Any, at: str) -> Input:
    if isinstance(value, str | list) and not value:
        raise _wrong(_EMPTY, at)
    if isinstance(value, str):
        return value
    try:
        return msgspec.convert(value, _IDS)
    except msgspec.ValidationError:
        raise _wrong("must be a string or a list of token ids", at) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(message: str, at: str = "") -> PydanticCustomError:
    return PydanticCustomError("wrong", message, {"at": at})


_ONE = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "integer"}}]}
Inputs = Annotated[
    list[Input],
    PlainValidator(_inputs_of),
    WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE, "minItems": 1}]}),
]


class EmbeddingRequest(RequestBody):
    """The body of `POST /v1/embeddings`. A field that is null counts as absent."""

    model: Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[
        int | None, Field(ge=1, le=_I32_MAX, description="Keeps so many first components.")
    ] = None
    pooling: Annotated[
        Literal["last", "mean"] | None,
        Field(description="The hidden state of the last token (if absent), or the mean over all tokens."),
    ] = None
    normalize: Annotated[bool | None, Field(description="Scale to length 1; if absent: true.")] = None
    truncate_prompt_tokens: Annotated[
        int | None, Field(ge=1, le=_I32_MAX, description="Keeps so many last tokens of each input.")
    ] = None
    user: str | None = None
    timeout: Annotated[float, Field(gt=0, description="Seconds.")] | None = None
