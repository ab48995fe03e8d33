"""Makes the call of a chat completion from its body and headers.

The rules for bodies are in `translation.py`, those for headers in `request_headers.py` and
`session_conditions.py`.
"""

from services.gateway.admission.request_headers import given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, in_session, seed_of
from services.gateway.answering.intake.session_conditions import with_conditions
from services.gateway.answering.left_out import LeftOut
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
from services.gateway.formats.fields.sampling import Origin, field_names_of


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
    if request.messages is None:  # token ids are no turn of a session, which only decides the route
        with_conditions(None, origin.headers, body.session_must_exist, [])
    else:
        request = in_session(request, origin.headers, body.session_must_exist, origin.once, origin.root_key)
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
