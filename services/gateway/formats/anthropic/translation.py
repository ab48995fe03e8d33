"""Makes generations and questions about tokens from bodies of the Messages API. Pure."""

from services.gateway.admission.request_headers import STREAM_GRACE, given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, in_session, priority_of, seed_of
from services.gateway.answering.left_out import LeftOut
from services.gateway.formats.anthropic.conversation import conversation_of
from services.gateway.formats.anthropic.schema import ConversationBody, MessagesRequest
from services.gateway.formats.anthropic.tools import SERVED_TYPES, structure_of, template_of, tool_use_of
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.changing_blocks import request_without_blocks, without_changing_blocks
from services.gateway.formats.fields.rules import inner_without_tools, judge_fields, offered_tools
from services.gateway.formats.fields.sampling import given_values
from shared.messages import GenerateRequest, Sampling, SessionRef, TokenizeQuery

# our names of the fields of a request that a leader may refuse
FIELD_NAMES = {
    "structured": "output_config.format.schema",
    "template": "thinking",
    "stop": "stop_sequences",
    "sampling.stop": "stop_sequences",
}
_HIDES_THINKING = b"omitted"  # as `format_data`


def message_call(body: MessagesRequest, origin: CallOrigin) -> Call:
    """Makes the call of a message. If the caller names no session it begins a new one.

    Args:
        body: The checked body.
        origin: What the call has beside it.

    Raises:
        InvalidRequest: A field or header is wrong; names it.
    """
    unknown, left_out = judge_body(body)
    once, session = origin.once, given_session(origin.headers, body.session_id)
    request = GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        messages=conversation_of(body.messages, body.system, whole=_is_whole(body, session)),
        sampling=Sampling(
            seed=seed_of(once) if body.seed is None else body.seed,
            seed_given=body.seed is not None,
            max_tokens=body.max_tokens,
            stop=body.stop_sequences or [],
            **given_values(body, ("temperature", "top_p", "top_k")),
        ),
        session=session,
        tenant=origin.tenant,
        delivery="stream" if body.stream else "whole",
        tools=tool_use_of(body.tools, body.tool_choice),
        structured=structure_of(body),
        template=template_of(body, body.max_tokens),
        continues=body.messages[-1].role == "assistant",
        priority=priority_of(body.priority),
    )
    request, blocks = request_without_blocks(request, origin.drops_blocks)
    left_out += blocks
    user = body.metadata.user_id if body.metadata is not None else None
    root = origin.root_of(None, user)
    request = in_session(request, origin.headers, None, once, origin.root_key, root=root)
    hides = body.thinking is not None and body.thinking.display == "omitted"
    return Call(
        kind="message",
        request_id=origin.request_id,
        requests=[count_once(request, once)],
        stream=bool(body.stream),
        event_ids=STREAM_GRACE in origin.headers,
        timeout_s=body.timeout,
        unknown_fields=unknown,
        left_out=left_out,
        format_data=_HIDES_THINKING if hides else b"",
        field_names=FIELD_NAMES,
    )


def shows_thinking(format_data: bytes) -> bool:
    """Returns whether the caller of a message wants to see the model's thinking."""
    return format_data != _HIDES_THINKING


def count_query(body: ConversationBody, tenant: str, *, drops_blocks: bool = True) -> TokenizeQuery:
    """The question how many tokens a message has; `drops_blocks` as in `CallOrigin`.

    Raises:
        InvalidRequest: A field is wrong; names it.
    """
    structure_of(body)
    messages = conversation_of(body.messages, body.system, whole=True)
    return TokenizeQuery(
        model=body.model,
        messages=without_changing_blocks(messages)[0] if drops_blocks else messages,
        tools=tool_use_of(body.tools, body.tool_choice),
        template=template_of(body),
        continues=body.messages[-1].role == "assistant",
        ids=False,
        tenant=tenant,
    )


def _is_whole(body: ConversationBody, session: SessionRef | None) -> bool:
    """Returns whether the body has the whole conversation, so that every call of a tool is in it."""
    if session is None or session.mode == "replace":
        return True
    return session.mode == "auto" and any(message.role == "assistant" for message in body.messages)


def judge_body(body: ConversationBody) -> tuple[list[str], list[LeftOut]]:
    """Judges the unknown fields of a body, and its tools; see `judge_fields`."""
    unknown, left_out = judge_fields(body.model_extra, type(body).model_fields)
    left_out += offered_tools(body.tools, SERVED_TYPES).left_out
    return [*unknown, *inner_without_tools(body.unknown_inside, left_out)], left_out
