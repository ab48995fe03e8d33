"""Errors as callers get them: status, headers and content, whatever the transport.

Turns the shared error family, and the few refusals that have only a status of HTTP, into one shape.
`errors/shapes.py` encodes it for the clients of another API. The texts of unexpected exceptions go to the log
and never to a caller.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import ValidationError

from services.gateway.admission.errors.validation_wording import problem_of
from shared.errors import TABLE, InvalidRequest, RyzError

Headers = list[tuple[bytes, bytes]]

_LONGEST_PATH = 128
RETRY_AFTER_S = 1.0  # for errors without one: a missing router, group or broker is back in seconds
# reasons of a 503 that lasts until an operator does something, so there is no time to come back
_LASTING = frozenset({"model_unloaded", "model_too_large"})
# OpenAI's clients repeat a 409, a 429 and a 504 by themselves unless a header forbids it:
# the first would meet the same conflict, a used-up budget is back in hours, and the last would compute for as
# long once more
_NOT_AGAIN = frozenset({"insufficient_quota", "conflict", "deadline_exceeded", "poison"})
# of a 401; Claude Code repeats one for minutes, without a word, unless a header forbids it
KEY_ASKED: Headers = [(b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false")]
INTERNAL_TEXT = "An internal error occurred; it was logged under the request id."


class HttpRefusal(Exception):
    """A refusal that exists only in HTTP: no such route, wrong method, no valid key, wrong content type."""

    def __init__(self, status: int, code: str, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or []


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error ready to be sent.

    Attributes:
        status: Of HTTP.
        message: What happened, and what to do.
        kind: OpenAI's type of error.
        code: Of the error family, or of `HttpRefusal`.
        headers: Headers of the response.
        param: The field at fault, if one is.
        data: What the error says to programs.
    """

    status: int
    message: str
    kind: str
    code: str
    headers: Headers
    param: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The body that OpenAI's clients understand."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def answer_for(error: Exception) -> ErrorAnswer:
    """The HTTP answer to an exception; anything unknown is a 500 without its text."""
    if isinstance(error, HttpRefusal):
        headers = [(b"x-ryz-reason", error.code.encode()), *error.headers]
        return ErrorAnswer(error.status, error.message, "invalid_request_error", error.code, headers)
    if not isinstance(error, RyzError) or error.code == "internal":
        headers = [(b"x-ryz-reason", b"internal")]
        return ErrorAnswer(500, INTERNAL_TEXT, "server_error", "internal", headers)
    row = TABLE[error.code]
    reason = str(error.data.get("reason") or error.code)
    headers = [(b"x-ryz-reason", header_value(reason))]
    if reason in _LASTING:
        headers.append((b"x-should-retry", b"false"))
    elif row.http_status in {429, 503}:
        wait_s = RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        headers.append((b"retry-after", str(max(1, math.ceil(wait_s))).encode()))
    if error.code in _NOT_AGAIN:
        headers.append((b"x-should-retry", b"false"))
    param = error.data.get("param")
    given = param if isinstance(param, str) else None
    return ErrorAnswer(
        row.http_status, error.message, row.openai_type, error.code, headers, given, error.data
    )


def error_event(answer: ErrorAnswer) -> bytes:
    """A failure in the middle of a stream of OpenAI's completions; no `[DONE]` follows it."""
    return b"data: " + answer.body + b"\n\n"


def header_value(text: str) -> bytes:
    """A text as the value of a header; characters that are not allowed in one are replaced."""
    return text.encode("ascii", "replace").translate(_HEADER_SAFE)


_HEADER_SAFE = bytes(c if 0x20 < c < 0x7F else 0x5F for c in range(256))


def invalid_body(error: ValidationError) -> InvalidRequest:
    """The first thing that is wrong with a body, by the name of its field."""
    first = error.errors(include_url=False)[0]
    return _wrong(first, path_of(first["loc"]) + str(first.get("ctx", {}).get("at", "")), "the body")


def invalid_parameter(first: Mapping[str, Any]) -> InvalidRequest:
    """The error for what the validator found wrong with a query first, by the name of its parameter."""
    return _wrong(first, path_of(first["loc"][1:]), "the query")  # its location starts with `query`


def _wrong(first: Mapping[str, Any], param: str, whole: str) -> InvalidRequest:
    problem = problem_of(first["type"], first["msg"], first.get("ctx", {}), param)
    given = first["input"]
    got = f", got {given!r}" if isinstance(given, int | float | str) and len(str(given)) <= 64 else ""
    if first["type"] in {"missing", "wrong"}:
        got = ""
    if not param:
        return InvalidRequest(f"{whole} {problem}{got}")  # JSON, but not an object
    return InvalidRequest(f"`{param}` {problem}{got}", param=param)


def path_of(location: Iterable[str | int]) -> str:
    """The path of a field, such as `messages[0].content`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."  # a caller may have made it
