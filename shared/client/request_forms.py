"""Makes requests from what callers have: a model, a text or messages, a session, tools, a schema.

Everything else is a field of `GenerateRequest`, for `msgspec.structs.replace`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from shared.errors import InvalidRequest
from shared.identity import new_request_id
from shared.messages import (
    ChatMessage,
    GenerateRequest,
    Role,
    Sampling,
    SessionRef,
    StructuredOutput,
    ToolDefinition,
    ToolUse,
)

_SEED_BYTES = 7  # a seed has 63 bits at most


def chat_request(
    model: str,
    messages: str | Sequence[ChatMessage | tuple[Role, str]],
    *,
    session: str = "",
    tools: Sequence[ToolDefinition] = (),
    tool_choice: Literal["auto", "none", "required"] = "auto",
    json_schema: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> GenerateRequest:
    """Returns a request for the next message of a conversation.

    Args:
        model: The model's name.
        messages: The user's text, or messages as such or as pairs (role, text).
        session: An id of yours: the fleet keeps the conversation, and each request brings only what is new.
        tools: Functions that the model may call; `tool` makes them.
        tool_choice: Whether it may call them, may not, or must.
        json_schema: The answer's text is JSON that matches this schema.
        sampling: Fields of `Sampling`, such as `max_tokens`, `temperature`, `seed`, `stop`. Without a seed,
            equal requests get different answers.

    Raises:
        InvalidRequest: There is no sampling parameter of that name, or a value is out of range.
    """
    return GenerateRequest(
        request_id=new_request_id(),
        model=model,
        messages=_messages(messages),
        sampling=_sampling(sampling),
        session=SessionRef(session_id=session) if session else None,
        tools=ToolUse(tools=list(tools), choice=tool_choice) if tools else None,
        structured=_structured(json_schema),
    )


def text_request(model: str, prompt: str, **sampling: Any) -> GenerateRequest:
    """Returns a request for the text that follows a prompt, or for the prompt's embedding.

    Args:
        model: The model's name.
        prompt: The text, which is tokenized as it is.
        sampling: See `chat_request`.

    Raises:
        InvalidRequest: See `chat_request`.
    """
    return GenerateRequest(
        request_id=new_request_id(), model=model, prompt=prompt, sampling=_sampling(sampling)
    )


def tool(
    name: str, description: str = "", parameters: Mapping[str, Any] | None = None, *, strict: bool = False
) -> ToolDefinition:
    """Returns a function that a model may call; `parameters` is the JSON Schema of its arguments."""
    schema = json.dumps(parameters) if parameters is not None else ""
    return ToolDefinition(name=name, description=description, parameters=schema, strict=strict)


def _messages(given: str | Sequence[ChatMessage | tuple[Role, str]]) -> list[ChatMessage]:
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    return [
        one if isinstance(one, ChatMessage) else ChatMessage(role=one[0], content=one[1]) for one in given
    ]


def _structured(schema: Mapping[str, Any] | None) -> StructuredOutput | None:
    if schema is None:
        return None
    return StructuredOutput(kind="json_schema", definition=json.dumps(schema))


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    unknown = sorted(fields.keys() - set(Sampling.__struct_fields__))
    if unknown:
        raise InvalidRequest(f"there is no sampling parameter {unknown[0]!r}", param=unknown[0])
    seed = int.from_bytes(os.urandom(_SEED_BYTES), "big")
    try:
        return msgspec.convert({"seed": seed, **fields}, Sampling)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"sampling: {error}", param="sampling") from error
