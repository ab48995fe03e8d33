"""Translates a request for a response into a `GenerateRequest`. Pure: ids, seed, history are arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from services.gateway.admission.errors.shapes import renamed
from services.gateway.answering.intake.new_calls import priority_of
from services.gateway.answering.left_out import LeftOut
from services.gateway.formats.fields.changing_blocks import request_without_blocks
from services.gateway.formats.fields.custom_tools import custom_names
from services.gateway.formats.fields.rules import (
    POLICY,
    inner_without_tools,
    judge_fields,
    offered_tools,
)
from services.gateway.formats.responses.events import ResponseEvents, wants_logprobs
from services.gateway.formats.responses.input_items import CALLS, ConversationBuilder
from services.gateway.formats.responses.object_fields import fields_of, shown_input
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.responses.tools import SERVED_TYPES, structure_of, tool_use_of
from shared.errors import InvalidRequest, RyzError
from shared.messages import ChatMessage, GenerateRequest, ResponseRecord, Sampling, TemplateOptions

NOTE = b"response"  # marks requests that another gateway may take over
MAX_MESSAGES = 4096
ID_PREFIX = "resp_"
UNSUPPORTED = "unsupported_field"  # why a field of the body is refused
_REFUSED = POLICY["response"]
_INCLUDES = frozenset(
    {
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
    }
)
# names of wire fields in errors of a leader, and what they are here
FIELD_NAMES = {
    "messages": "input",
    "prompt": "input",
    "structured": "text.format.schema",
    "template": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A request for a response, ready to run.

    Attributes:
        fields: The response object at its beginning.
        input_items: The items of its own input.
        timeout_s: The time limit in the body; None if it has none.
        unknown_fields: Names of fields of the body that are not known.
        left_out: Parts of the body that are known and not served.
    """

    request: GenerateRequest
    fields: dict[str, Any]
    input_items: list[dict[str, Any]]
    stream: bool
    timeout_s: float | None = None
    unknown_fields: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return str(self.fields["id"])

    @property
    def stored(self) -> bool:
        """Whether the response is kept."""
        return bool(self.fields["store"])

    @property
    def background(self) -> bool:
        """Whether the response runs without its caller."""
        return bool(self.fields["background"])

    @property
    def with_logprobs(self) -> bool:
        """Whether texts carry log probabilities."""
        return self.request.sampling.logprobs >= 0

    def for_request(self, request: GenerateRequest) -> "ResponseCall":
        """The same response with its generation as it runs, under the real name of its model."""
        return replace(self, request=request, fields=self.fields | {"model": request.model})

    def new_events(self) -> ResponseEvents:
        """The events of the response, before the first."""
        return ResponseEvents(
            dict(self.fields), with_logprobs=self.with_logprobs, custom=custom_names(self.request)
        )

    def record(self, body: dict[str, Any], *, ended: bool, request: bytes = b"") -> ResponseRecord:
        """The record of the response; `body` is its object."""
        return ResponseRecord(
            response_id=self.response_id,
            tenant=self.request.tenant,
            model=self.request.model,
            parent=self.fields["previous_response_id"] or "",
            created_ms=self.fields["created_at"] * 1000,
            ended=ended,
            input_items=msgspec.json.encode(self.input_items).decode(),
            body=msgspec.json.encode(body).decode(),
            request=request,
        )


def response_call(
    body: ResponseRequest,
    history: Sequence[ResponseRecord],
    *,
    request_id: str,
    tenant: str,
    seed: int,
    created_s: int,
    drops_blocks: bool,
    route_key: str = "",
) -> ResponseCall:
    """Makes the call.

    Args:
        body: The checked body.
        history: The responses that it continues, oldest first.
        request_id: The id of the request as it travels.
        tenant: Whose it is.
        seed: Used if the body has none.
        created_s: Unix time.
        drops_blocks: As in `CallOrigin`.
        route_key: As in `GenerateRequest`.

    Raises:
        InvalidRequest: A field is wrong; names it.
    """
    unknown, left_out = _check(body)
    name = request_id
    messages = _messages_of(body, history)
    logprobs = -1
    if wants_logprobs(body.include) or body.top_logprobs:
        logprobs = body.top_logprobs or 0
    effort = (body.reasoning.effort if body.reasoning else None) or ""
    request = GenerateRequest(
        request_id=request_id,
        model=body.model,
        messages=messages,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            seed=seed if body.seed is None else body.seed % 2**63,
            seed_given=body.seed is not None,
            max_tokens=body.max_output_tokens or 0,
            logprobs=logprobs,
        ),
        tenant=tenant,
        route_key=route_key,
        priority=priority_of(body.priority),
        truncation=body.truncation or "disabled",
        delivery="stream" if body.stream or body.background else "whole",
        note=NOTE if body.background else b"",
        tools=tool_use_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False),
        structured=structure_of(body.text.format if body.text else None),
        template=TemplateOptions(reasoning_effort=effort) if effort else None,
    )
    request, blocks = request_without_blocks(request, drops_blocks)
    left_out += blocks
    unknown = [*unknown, *inner_without_tools(body.unknown_inside, left_out)]
    fields = fields_of(body, f"{ID_PREFIX}{name}", created_s)
    if unknown or left_out:  # a WebSocket and a later reader get no header
        fields["ignored"] = [part.shown for part in (*left_out, *map(LeftOut, unknown))]
    return ResponseCall(
        request=request,
        fields=fields,
        input_items=shown_input(body.input, name),
        stream=bool(body.stream),
        timeout_s=body.timeout,
        unknown_fields=tuple(unknown),
        left_out=tuple(left_out),
    )


def _check(body: ResponseRequest) -> tuple[list[str], list[LeftOut]]:
    """Refuses what is not served; returns the names of unknown fields, and what is left out."""
    for name, value in (body.model_extra or {}).items():
        if name == "generate" and value is False:
            raise InvalidRequest("`generate` false is not supported: nothing needs a warm-up", param=name)
        if name in _REFUSED and value is not None and not (name == "n" and value == 1):
            raise InvalidRequest(f"`{name}` {_REFUSED[name].why}", param=name, reason=UNSUPPORTED)
    for index, included in enumerate(body.include or ()):
        if included not in _INCLUDES:
            raise InvalidRequest(
                f"`include[{index}]` is {included[:64]!r}, and can be {', '.join(sorted(_INCLUDES))}",
                param=f"include[{index}]",
            )
    if body.background and body.store is False:
        raise InvalidRequest("`background` needs `store` to be true", param="background")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true", param="stream_options")
    # what is neutral of the refused fields asks for nothing
    rest = {name: value for name, value in (body.model_extra or {}).items() if name not in _REFUSED}
    unknown, left_out = judge_fields(rest, ResponseRequest.model_fields, _REFUSED)
    left_out += offered_tools(body.tools, SERVED_TYPES).left_out
    return unknown, left_out


def _messages_of(body: ResponseRequest, history: Sequence[ResponseRecord]) -> list[ChatMessage]:
    builder = ConversationBuilder()
    for record in history:
        whole = msgspec.json.decode(record.body)
        if not record.ended or whole["status"] not in {"completed", "incomplete"}:
            raise InvalidRequest(
                f"`previous_response_id`: response {record.response_id!r} is {whole['status']}, and only "
                "one that is completed or incomplete can be continued",
                param="previous_response_id",
            )
        builder.add_items(msgspec.json.decode(record.input_items), "previous_response_id.input")
        # a call that was cut off is no call
        kept = [
            item for item in whole["output"] if not (item["type"] in CALLS and item["status"] == "incomplete")
        ]
        builder.add_items(kept, "previous_response_id.output")
    if isinstance(body.input, str):
        builder.add_text(body.input)
    else:
        builder.add_items(body.input)
    messages = builder.finish()
    if body.instructions:
        messages = [ChatMessage(role="system", content=body.instructions), *messages]
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"the conversation has {len(messages)} messages and may have {MAX_MESSAGES}", param="input"
        )
    return messages


def with_our_names(error: RyzError) -> RyzError:
    """The error of a leader with the caller's name of the field."""
    return renamed(error, FIELD_NAMES)
