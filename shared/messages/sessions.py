"""Session records and the calls of the KV state service that read and write them.

A record is the text and the tokens of a conversation and where it was last served. Every call names the
tenant; a session of another tenant does not exist for the caller.
"""

from typing import Annotated, Any

import msgspec

from shared.messages.base import SessionId, Tenant, TokenIds, Wire, check_depth
from shared.messages.generate import ChatMessage


class SessionRecord(Wire, frozen=True, kw_only=True):
    """A session at the end of a turn. `version` counts commits; a lower one never overwrites a higher one.

    token_ids: prompt and answer of the last turn, all of it, as the engine computed them.
    """

    session_id: SessionId
    tenant: Tenant
    model: str
    version: Annotated[int, msgspec.Meta(ge=1)]
    messages: list[ChatMessage] = []
    token_ids: TokenIds = b""
    turns: int = 0
    last_group: str = ""
    created_ms: int = 0
    updated_ms: int = 0


class SessionSummary(Wire, frozen=True, kw_only=True):
    """A session without its text."""

    session_id: SessionId
    tenant: Tenant
    model: str
    version: int
    turns: int
    num_messages: int
    num_tokens: int
    last_group: str
    created_ms: int
    updated_ms: int
    ttl_s: int = 0


class SessionGet(Wire, frozen=True, kw_only=True):
    """Asks for one record."""

    tenant: Tenant
    session_id: SessionId


class SessionCommit(Wire, frozen=True, kw_only=True):
    """Stores records; each stands or falls alone."""

    records: Annotated[list[SessionRecord], msgspec.Meta(min_length=1)]


class SessionList(Wire, frozen=True, kw_only=True):
    """Asks for summaries, newest first. `cursor` continues an earlier page; empty: from the start."""

    tenant: Tenant
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str = ""


class SessionDelete(Wire, frozen=True, kw_only=True):
    """Deletes a session, text and all."""

    tenant: Tenant
    session_id: SessionId


class SessionFound(Wire, frozen=True, kw_only=True):
    """Answer to `SessionGet`."""

    record: SessionRecord


class SessionCommitted(Wire, frozen=True, kw_only=True):
    """Answer to `SessionCommit`: what was not stored, as positions in `records`. All other records were.

    stale: the stored version was newer already and was kept. too_large: the record is over the limit.
    """

    stale: list[int] = []
    too_large: list[int] = []


class SessionPage(Wire, frozen=True, kw_only=True):
    """Answer to `SessionList`; an empty cursor marks the last page."""

    sessions: list[SessionSummary]
    cursor: str = ""


class SessionDeleted(Wire, frozen=True, kw_only=True):
    """Answer to `SessionDelete`."""

    session_id: SessionId


class ErrorReply(Wire, frozen=True, kw_only=True):
    """The answer of a request/reply call that failed, in place of the expected one. See the error codes."""

    error: str
    message: str
    data: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_depth(self.data)
