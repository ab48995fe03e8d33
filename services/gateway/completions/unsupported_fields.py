"""Judges what a completion's body has that no route serves, by the rule of `field_policy/`. Pure."""

from typing import Any

from services.gateway.completions.chat_tools import SERVED_TYPES, refuse_older_tools
from services.gateway.completions.completion_schema import ChatCompletionRequest, SamplingBody
from services.gateway.field_policy.field_rules import judge_fields, refuse_unless_neutral
from services.gateway.field_policy.left_out import LeftOut
from services.gateway.field_policy.tool_types import offered_tools

_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "function_call": (),
    "audio": (),
}


def judge_body(body: SamplingBody) -> tuple[list[str], list[LeftOut]]:
    """Judges the unknown fields of a body, and its tools.

    Returns:
        The names of the fields that are not known, shortened; and what is known and left out.

    Raises:
        InvalidRequest: A field or tool changes the meaning of the answer or is misspelt; names it.
    """
    if body.model_extra:
        refuse_older_tools(body.model_extra)
    unknown, left_out = judge_fields(body.model_extra, type(body).model_fields)
    if isinstance(body, ChatCompletionRequest):
        for place, message in enumerate(body.messages or ()):
            for field, value in (message.model_extra or {}).items():
                neutral = _NEUTRAL_IN_MESSAGE.get(field)
                if neutral is not None:
                    refuse_unless_neutral(f"messages[{place}].{field}", value, neutral)
        if isinstance(body.tools, list):
            left_out += offered_tools(body.tools, SERVED_TYPES).left_out
    return unknown, left_out
