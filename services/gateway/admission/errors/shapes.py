"""Errors in the form of a route: the field names of its format, and OpenAI's or Anthropic's body. Pure."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.admission.errors.refusals import ErrorAnswer
from shared.errors import RyzError

ANTHROPIC = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_anthropic(path: str) -> bool:
    """Returns whether a path is one of Anthropic's API."""
    return path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")


def error_body(answer: ErrorAnswer, path: str, request_id: str = "") -> bytes:
    """The body of an error in the form that the clients of a path understand.

    Args:
        answer: The error.
        path: Of the request, whether there is such a route or not.
        request_id: As the caller sees it; empty: not known.
    """
    return anthropic_body(answer, request_id) if is_anthropic(path) else answer.body


def anthropic_body(answer: ErrorAnswer, request_id: str = "") -> bytes:
    """The body that Anthropic's clients understand (https://docs.anthropic.com/en/api/errors).

    `param` and `code` are additions to it. Claude Code knows by Anthropic's words that it has to compact a
    conversation, or to ask for fewer tokens.
    """
    kind = _TYPES.get(answer.status) or ("invalid_request_error" if answer.status < 500 else "api_error")
    message = _anthropic_overflow(answer.data) + answer.message
    error = {"type": kind, "message": message, "param": answer.param, "code": answer.code}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id or None})


def _anthropic_overflow(data: Mapping[str, Any]) -> str:
    """What Anthropic's API says of a prompt that does not fit into the context; empty for other errors."""
    holds, prompt, answer = (data.get(name) for name in ("context_length", "prompt_tokens", "max_tokens"))
    if not isinstance(holds, int) or not isinstance(prompt, int):
        return ""
    if prompt < holds and isinstance(answer, int):
        return f"input length and `max_tokens` exceed context limit: {prompt} + {answer} > {holds}; "
    return f"prompt is too long: {prompt} tokens > {holds} maximum; "


def renamed(error: RyzError, names: Mapping[str, str]) -> RyzError:
    """The error with the caller's name of the field, also in its message; the same one without such a name.

    Args:
        error: Names a field of `GenerateRequest` in `param`, or one inside it.
        names: The caller's names by those of `GenerateRequest`; of several that fit, the longest counts.
    """
    param = error.data.get("param")
    if not isinstance(param, str):
        return error
    for field in sorted(names, key=len, reverse=True):
        rest = param[len(field) :]
        if param.startswith(field) and (not rest or rest[0] in ".["):
            # the field, or else what it is inside of; not `stop_token_ids`, where `stop` is meant
            known = "|".join(map(re.escape, (field, field.partition(".")[0])))
            message = re.sub(rf"`(?:{known})(?=[`.\[])", f"`{names[field]}", error.message)
            return type(error)(message, **{**error.data, "param": names[field] + rest})
    return error
