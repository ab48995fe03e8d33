"""Conditions that a caller sets for a turn of its session: that the session exists, or is at a version.

Reads and validates headers; the leader, which knows the session, checks the conditions.
"""

import re

from msgspec.structs import replace

from services.gateway.admission.request_headers import RawHeaders
from shared.errors import InvalidRequest
from shared.identity import is_made_session_id
from shared.messages import ChatMessage, SessionRef

_VERSION = re.compile(rb'(?:W/)?"?(\d{1,15})"?')
_YES_OR_NO = {b"true": True, b"1": True, b"false": False, b"0": False}


def with_conditions(
    session: SessionRef | None, headers: RawHeaders, in_body: bool | None, messages: list[ChatMessage]
) -> SessionRef | None:
    """Adds the conditions of a turn to its session.

    An id that a gateway made belongs to a session that existed. If a turn sends only its new messages and the
    session is missing, it was lost or has expired. So such a turn gets the condition that the session exists.

    Raises:
        InvalidRequest: A header cannot be read, or there is a condition and no session.
    """
    must_exist = _flag(headers, in_body)
    if_version = _version(headers)
    if headers.get(b"if-match", b"").strip() == b"*":
        must_exist = True
    if session is None:
        if must_exist or if_version >= 0:
            raise InvalidRequest(
                "`If-Match`, `If-None-Match` and `X-Session-Must-Exist` need a session of chat completions: "
                "send its id in `X-Session-Id`",
                param="x-session-id",
            )
        return None
    if must_exist is None:
        only_new = all(message.role != "assistant" for message in messages)
        appends = only_new if session.mode == "auto" else session.mode == "append"
        must_exist = appends and is_made_session_id(session.session_id)
    if not must_exist and if_version < 0:
        return session
    return replace(session, must_exist=must_exist, if_version=if_version)


def _flag(headers: RawHeaders, in_body: bool | None) -> bool | None:
    raw = headers.get(b"x-session-must-exist")
    if raw is None:
        return in_body
    flag = _YES_OR_NO.get(raw.strip().lower())
    if flag is None:
        raise InvalidRequest("`x-session-must-exist` is true or false", param="x-session-must-exist")
    return flag


def _version(headers: RawHeaders) -> int:
    """The version that the session must have; 0 if it must not exist, -1 for any."""
    absent = headers.get(b"if-none-match")
    raw = headers.get(b"if-match")
    if absent is not None:
        if absent.strip() != b"*" or raw is not None:
            raise InvalidRequest(
                "`If-None-Match` is * for a turn whose session must not exist, without `If-Match` beside it; "
                "a version that the session must have stands in `If-Match`",
                param="if-none-match",
            )
        return 0
    if raw is None or raw.strip() == b"*":
        return -1
    found = _VERSION.fullmatch(raw.strip())
    if found is None:
        raise InvalidRequest(
            '`If-Match` is the version of the session that `X-Ryz-Session` told, such as "3", or *',
            param="if-match",
        )
    return int(found[1])
