"""Decides which fields of a body are refused and which are only named: those beside the known ones. Pure.

Refused are fields that would change the answer and are not supported, and misspelt ones.
"""

import difflib
from typing import Any

from services.gateway.completions.chat_tools import refuse_older_tools
from services.gateway.completions.completion_schema import ChatCompletionRequest, SamplingBody
from shared.errors import InvalidRequest

MISSPELT = 0.85  # how similar a field must be to a known one to count as misspelt
_LONGEST_FIELD = 64  # comparing takes time; no known name is nearly as long
_MAX_COMPARED = 16  # unknown fields of a body that are compared; some 0.2 ms each

# Fields that would change the answer if they were supported, and their values that change nothing. `False`
# and `0` are equal in Python, as needed here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "guided_whitespace_pattern": (),
    "continue_final_message": (False,),
    "chat_template": (),
}
# OpenAI's fields that do not change the answer: they are accepted and counted, with any value.
_ACCEPTED = frozenset(
    {
        "moderation",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "verbosity",
        # of other servers that speak this API
        "add_generation_prompt",
        "guided_decoding_backend",
        "length_penalty",
        "priority",
        "request_id",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)
_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "function_call": (),
    "audio": (),
}


def refuse_unsupported(body: SamplingBody) -> list[str]:
    """Refuses fields that would change the answer and are not supported, and misspelt ones.

    Only the first `_MAX_COMPARED` unknown fields are compared with known ones.

    Returns:
        The names of the fields that are not known, shortened.

    Raises:
        InvalidRequest: Names the field.
    """
    extra = body.model_extra
    unknown: list[str] = []
    if extra:
        refuse_older_tools(extra)
        for field, value in extra.items():
            neutral = _NEUTRAL.get(field)
            if neutral is None:
                if field in _ACCEPTED:
                    continue
                if len(unknown) < _MAX_COMPARED:
                    _refuse_misspelt(field, type(body))
                unknown.append(field[:_LONGEST_FIELD])
            else:
                _refuse_unless_neutral(field, value, neutral)
    if isinstance(body, ChatCompletionRequest):
        for place, message in enumerate(body.messages or ()):
            for field, value in (message.model_extra or {}).items():
                neutral = _NEUTRAL_IN_MESSAGE.get(field)
                if neutral is not None:
                    _refuse_unless_neutral(f"messages[{place}].{field}", value, neutral)
    return unknown


def _refuse_misspelt(field: str, kind: type[SamplingBody]) -> None:
    """Raises `InvalidRequest` if an unknown field is nearly a known one."""
    if len(field) > _LONGEST_FIELD:
        return
    meant = difflib.get_close_matches(field, [*kind.model_fields, *_NEUTRAL], n=1, cutoff=MISSPELT)
    if meant:
        raise InvalidRequest(f"unknown field `{field}`: did you mean `{meant[0]}`?", param=field)


def _refuse_unless_neutral(field: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is None or value in neutral:
        return
    allowed = " or ".join(["absent", *(repr(item) for item in neutral if item != "")])
    raise InvalidRequest(f"`{field}` is not supported: it must be {allowed}", param=field)
