"""Makes the call of a chat completion from its body and headers.

The rules for bodies are in `translation.py`, those for headers in `request_headers.py` and
`new_calls.py`. A plain body, which is read without its model, has a shorter path to the same call.
"""

import msgspec

from services.gateway.admission.request_headers import STREAM_GRACE, given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, in_session, seed_of, with_conditions
from services.gateway.answering.left_out import LeftOut
from services.gateway.formats.chat.plain_body import PlainChat
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.chat.tools import SERVED_TYPES
from services.gateway.formats.chat.translation import chat_request
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.changing_blocks import request_without_blocks
from services.gateway.formats.fields.completion_call import call_of_body, judge_body
from services.gateway.formats.fields.rules import (
    POLICY,
    offered_tools,
    refuse_unless_neutral,
)
from services.gateway.formats.fields.sampling import (
    NAMES_IN_BODY,
    NEWER_LENGTH,
    PLAIN_SAMPLING,
    Origin,
    field_names_of,
    given_values,
)
from shared.messages import ChatMessage, GenerateRequest, Sampling

_decoder = msgspec.json.Decoder(PlainChat)


def chat_call(body: ChatCompletionRequest, origin: CallOrigin) -> Call:
    """Makes the call of a chat completion. If the caller names no session it begins a new one.

    Args:
        body: The checked body.
        origin: What the call has beside it.

    Raises:
        InvalidRequest: A field or header is wrong; names it.
    """
    unknown, left_out = judge_chat(body)
    session = given_session(origin.headers, body.session_id)
    request = chat_request(body, Origin(origin.request_id, origin.tenant, seed_of(origin.once), session))
    request, blocks = request_without_blocks(request, origin.drops_blocks)
    left_out += blocks
    root = origin.root_of(body.prompt_cache_key, body.user)
    if request.messages is None:  # token ids are no turn of a session, which only decides the route
        with_conditions(None, origin.headers, body.session_must_exist, [])
        request = msgspec.structs.replace(request, route_key=root) if root else request
    else:
        request = in_session(
            request, origin.headers, body.session_must_exist, origin.once, origin.root_key, root=root
        )
    names = field_names_of(body, newer_length=bool(body.max_completion_tokens))
    return call_of_body(
        "chat",
        body,
        origin,
        [count_once(request, origin.once)],
        unknown=unknown,
        left_out=left_out,
        field_names=names,
    )


def judge_chat(body: ChatCompletionRequest) -> tuple[list[str], list[LeftOut]]:
    """Judges the unknown fields of a body and of its messages, and its tools; see `judge_body`."""
    unknown, left_out = judge_body(body)
    for index, message in enumerate(body.messages or ()):
        for field, value in (message.model_extra or {}).items():
            if field in POLICY["message of a chat"]:
                rule = POLICY["message of a chat"][field]
                refuse_unless_neutral(f"messages[{index}].{field}", value, rule)
    if isinstance(body.tools, list):
        left_out += offered_tools(body.tools, SERVED_TYPES).left_out
    return unknown, left_out


def plain_chat_call(raw: bytes, origin: CallOrigin) -> Call | None:
    """Makes the call of a body, as `chat_call` does; None if the body is none that is read here.

    Args:
        raw: The body, not checked yet.
        origin: What the call has beside it.

    Raises:
        InvalidRequest: A header is wrong, or the session's id; `chat_call` would raise the same.
    """
    try:
        body = _decoder.decode(raw)
    except Exception:  # of many kinds; the models of bodies find the words
        return None
    options = body.stream_options
    if options is not None and not body.stream:
        return None
    request = GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        messages=[
            ChatMessage(
                role="system" if message.role == "developer" else message.role,
                content=message.content,
                name=message.name or "",
            )
            for message in body.messages
        ],
        sampling=_sampling_of(body, seed_of(origin.once)),
        session=given_session(origin.headers, body.session_id),
        tenant=origin.tenant,
        delivery="stream" if body.stream else "whole",
    )
    request, blocks = request_without_blocks(request, origin.drops_blocks)
    root = origin.root_of(body.prompt_cache_key, body.user)
    request = in_session(
        request, origin.headers, body.session_must_exist, origin.once, origin.root_key, root=root
    )
    ids = None if options is None else options.include_event_ids
    return Call(
        kind="chat",
        request_id=origin.request_id,
        requests=[count_once(request, origin.once)],
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in origin.headers if ids is None else ids,
        unknown_fields=[],
        left_out=blocks,
        field_names=NAMES_IN_BODY | NEWER_LENGTH if body.max_completion_tokens else NAMES_IN_BODY,
    )


def _sampling_of(body: PlainChat, seed: int) -> Sampling:
    """The sampling options; `seed` is used if the body has none."""
    stop = body.stop
    return Sampling(
        seed=seed if body.seed is None else body.seed % 2**63,
        seed_given=body.seed is not None,
        max_tokens=body.max_completion_tokens or body.max_tokens or 0,
        stop=[] if stop is None else [stop] if isinstance(stop, str) else stop,
        **given_values(body, PLAIN_SAMPLING),
    )
