"""Reads what the headers of a request say about it: session, request id, time limits.

Reads and validates; it looks nothing up.
"""

import math
import re
from collections.abc import Mapping
from typing import Literal

from shared.errors import InvalidRequest
from shared.messages import SessionRef
from shared.messages.base import ID_PATTERN, NAME_PATTERN, NAME_RULE

SESSION_HEADERS = (b"x-session-id", b"x-dynamo-session-id", b"x-smg-routing-key")
STREAM_GRACE = b"x-stream-grace"
PROGRESS = b"x-ryz-progress"
# what a call may say beside its body, its key and its trace: every transport takes these, each at most once
CALL_HEADERS = frozenset(
    {
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"x-request-id",
        b"x-request-timeout",
        b"x-session-mode",
        b"x-session-must-exist",
        *SESSION_HEADERS,
    }
)
_ROOM_FOR_NUMBER = 4  # characters of `-NNN`, which tells the prompts of one call apart
_SESSION_ID = re.compile(NAME_PATTERN)
_REQUEST_ID = re.compile(ID_PATTERN)
_MODES: dict[bytes, Literal["auto", "append", "replace"]] = {
    b"auto": "auto",
    b"append": "append",
    b"replace": "replace",
}

RawHeaders = Mapping[bytes, bytes]


def given_session(headers: RawHeaders, in_body: str | None) -> SessionRef | None:
    """The session that the caller named, by header or in the body; a header wins.

    Returns:
        The session; None if the caller named none.

    Raises:
        InvalidRequest: The id or the mode is not valid; names the header or field.
    """
    source, session_id = "session_id", in_body
    for header in SESSION_HEADERS:
        raw = headers.get(header)
        if raw:
            source, session_id = header.decode(), _text(raw)
            break
    mode = session_mode(headers)
    if not session_id:
        if mode == "append":
            raise InvalidRequest(
                "`x-session-mode: append` needs a session: send its id in `x-session-id`",
                param="x-session-mode",
            )
        return None
    if not _SESSION_ID.match(session_id):
        raise InvalidRequest(f"`{source}` needs {NAME_RULE}", param=source)
    return SessionRef(session_id=session_id, given=True, mode=mode)


def session_mode(headers: RawHeaders) -> Literal["auto", "append", "replace"]:
    """The mode in the header `X-Session-Mode`; `auto` without one."""
    raw = headers.get(b"x-session-mode")
    if raw is None:
        return "auto"
    mode = _MODES.get(raw.strip().lower())
    if mode is None:
        raise InvalidRequest(
            f"`x-session-mode` is auto, append or replace, got {_text(raw)[:32]!r}", param="x-session-mode"
        )
    return mode


def request_ids(headers: RawHeaders, made: str) -> tuple[str, str]:
    """The id of a request that the caller sees, and the one that travels.

    The second is the caller's id with a unique suffix: two requests with one id would share their frames.

    Args:
        headers: Headers of the request; an `X-Request-Id` that is not valid counts as none.
        made: A fresh unique id of at most 32 characters.
    """
    raw = headers.get(b"x-request-id")
    if raw is None:
        return made, made
    given = _text(raw)
    if not _REQUEST_ID.match(given):
        return made, made
    return given, f"{given[: 64 - 1 - len(made) - _ROOM_FOR_NUMBER]}-{made}"


def time_limit_s(headers: RawHeaders, in_body: float | None, *, default_s: float, max_s: float) -> float:
    """Seconds that the caller gives the request, at most `max_s`.

    Raises:
        InvalidRequest: The header is not a positive number.
    """
    raw = headers.get(b"x-request-timeout")
    if raw is None:
        return min(in_body, max_s) if in_body is not None else default_s
    try:
        wanted_s = float(raw)
    except ValueError:
        wanted_s = math.nan
    if not (math.isfinite(wanted_s) and wanted_s > 0):
        raise InvalidRequest(
            f"`x-request-timeout` is a positive number of seconds, got {_text(raw)[:32]!r}",
            param="x-request-timeout",
        )
    return min(wanted_s, max_s)


def stream_grace_s(headers: RawHeaders, *, default_s: float, max_s: float) -> float:
    """Seconds that a stream goes on without its client, at most `max_s`.

    Raises:
        InvalidRequest: The header is not a number of seconds.
    """
    raw = headers.get(STREAM_GRACE)
    if raw is None:
        return min(default_s, max_s)
    try:
        wanted_s = float(raw)
    except ValueError:
        wanted_s = math.nan
    if not (math.isfinite(wanted_s) and wanted_s >= 0):
        raise InvalidRequest(
            f"`x-stream-grace` is a number of seconds, 0 or more, got {_text(raw)[:32]!r}",
            param="x-stream-grace",
        )
    return min(wanted_s, max_s)


def wants_progress(headers: RawHeaders) -> bool:
    """Whether a stream shows what it waits for, before its first event, as comments.

    Raises:
        InvalidRequest: The header is neither true nor false.
    """
    raw = headers.get(PROGRESS, b"false").strip().lower()
    if raw not in {b"true", b"false"}:
        raise InvalidRequest(
            f"`x-ryz-progress` is true or false, got {_text(raw)[:32]!r}", param="x-ryz-progress"
        )
    return raw == b"true"


def _text(raw: bytes) -> str:
    """The value of a header as text: UTF-8, since session ids may hold any letters, else Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
