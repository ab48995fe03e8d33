"""Decides what becomes of fields that no API here serves; the same table for all APIs. Pure.

A field that changes the meaning of an answer is refused by name. One that a model can do without is left out
and told to the caller. Some ask for nothing about the answer; they are accepted in silence.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from services.gateway.field_policy.left_out import LeftOut
from shared.errors import InvalidRequest

MISSPELT = 0.85  # how similar a field must be to a known one to count as misspelt
_LONGEST_FIELD = 64  # comparing takes time; no known name is nearly as long
_MAX_COMPARED = 16  # unknown fields of a body that are compared; some 0.2 ms each

# Fields that change the meaning of an answer, and their values that change nothing. `False` and `0` are
# equal in Python, as needed here.
REFUSED: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
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
# Fields that a model can do without, why, and values that ask for nothing.
WITHOUT: dict[str, tuple[str, tuple[Any, ...]]] = {
    "prediction": ("a hint for speed", ()),
    "web_search_options": ("no web search", ()),
    "context_management": ("no editing of the context", ()),
    "mcp_servers": ("no tools of servers", ([],)),
    "container": ("no code execution", ()),
    "verbosity": ("no such control", ("medium",)),
    "moderation": ("no moderation", ()),
    "inference_geo": ("one location", ("not_available", "global")),
    "speed": ("one speed", ("standard",)),
    "guided_decoding_backend": ("one backend", ("auto",)),
    "length_penalty": ("for beam search only", (1,)),
    "skip_special_tokens": ("always true", (True,)),
    "spaces_between_special_tokens": ("always true", (True,)),
}
# They ask for nothing about the answer.
ACCEPTED = frozenset(
    {
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "add_generation_prompt",
        "request_id",
        "betas",
        "cache_control",
        "diagnostics",
        "user_profile_id",
        "workspace_id",
        # of gRPC's clients: values of the model itself
        "end_id",
        "pad_id",
    }
)


def judge_fields(
    extra: Mapping[str, Any] | None, known: Iterable[str], also: Iterable[str] = ()
) -> tuple[list[str], list[LeftOut]]:
    """Judges the fields of a body that its model does not have.

    Only the first `_MAX_COMPARED` unknown fields are compared with known ones.

    Args:
        extra: Fields at the top of the body that its model does not know.
        known: Names of fields that are served on the route.
        also: Names that the route has refused, with neutral values.

    Returns:
        The names of unknown fields, shortened; and the known fields that are left out.

    Raises:
        InvalidRequest: A field changes the meaning of the answer or is misspelt; names it.
    """
    unknown: list[str] = []
    left_out: list[LeftOut] = []
    names = None
    for field, value in (extra or {}).items():
        if field in REFUSED:
            refuse_unless_neutral(field, value, REFUSED[field])
        elif field in WITHOUT:
            why, nothing = WITHOUT[field]
            if value is not None and value not in nothing:
                left_out.append(LeftOut(field, why=why))
        elif field not in ACCEPTED:
            if len(unknown) < _MAX_COMPARED:
                names = names or [*known, *REFUSED, *WITHOUT, *also]
                _refuse_misspelt(field, names)
            unknown.append(field[:_LONGEST_FIELD])
    return unknown, left_out


def refuse_unless_neutral(field: str, value: Any, neutral: tuple[Any, ...]) -> None:
    """Raises `InvalidRequest` if the value of a field asks for what is not served."""
    if value is None or value in neutral:
        return
    allowed = " or ".join(["absent", *(repr(item) for item in neutral if item != "")])
    raise InvalidRequest(f"`{field}` is not supported: it must be {allowed}", param=field)


def _refuse_misspelt(field: str, names: Iterable[str]) -> None:
    """Raises `InvalidRequest` if an unknown field is nearly a known one."""
    if len(field) > _LONGEST_FIELD or field in names:
        return
    meant = difflib.get_close_matches(field, names, n=1, cutoff=MISSPELT)
    if meant:
        raise InvalidRequest(f"unknown field `{field}`: did you mean `{meant[0]}`?", param=field)
