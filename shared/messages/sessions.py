"""Session records and the calls of the KV state service that read and write them.

A record is the text and the tokens of a conversation and where it was last served. Every call names the
tenant; a session of another tenant does not exist for the caller. Pins and what the store holds of a
session's KV stand beside the record: they change without a turn.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from shared.messages.base import (
    SMALL,
    GroupName,
    ModelName,
    SessionId,
    StoredSessionId,
    Tenant,
    TokenIds,
    Wire,
    check_depth,
)
from shared.messages.generate import ChatMessage

MAX_MARKS = 16
# Of a stored session. A context of 131,072 tokens holds so many of 16 tokens each; what messages cost beside
# their text (to read, to check, to render) has a bound by it, however many empty ones fit into a file.
MAX_SESSION_MESSAGES = 8192


class TurnMark(Wire, frozen=True, kw_only=True):
    """One of a session's last turns: its request, and how many messages at the end of the conversation it
    brought, its answer included.

    version: of the session after it. whole: it brought the whole conversation in place of what was there.
    call_key, call_digest: of its request. replaces: the request of the turn whose place it took.
    """

    request_id: str
    version: int
    size: Annotated[int, msgspec.Meta(ge=1)]
    whole: bool = False
    call_key: str = ""
    call_digest: str = ""
    replaces: str = ""


class SessionRecord(Wire, frozen=True, kw_only=True):
    """A session at the end of a turn. `version` counts commits; a lower one never overwrites a higher one.

    token_ids: prompt and answer of the last turn, all of it, as the engine computed them. last_request: the
    id of its request, which may be asked for again when its answer got lost. recent: the last turns, the
    newest at the end, at most `MAX_MARKS`; a record goes on from another when it has that one's last request.
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
    last_request: str = ""
    recent: list[TurnMark] = []


class SessionSummary(Wire, frozen=True, kw_only=True):
    """A session without its text.

    pinned_group: where all its turns go; empty: routers choose. kv_bytes, kv_blocks: of its KV in the store,
    with what it shares with other sessions. kv_byte_seconds: bytes times the seconds they were kept, so far.
    """

    session_id: StoredSessionId
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
    pinned_group: str = ""
    kv_bytes: int = 0
    kv_blocks: int = 0
    kv_byte_seconds: float = 0.0


class SessionGet(Wire, frozen=True, kw_only=True):
    """Asks for one record."""

    max_bytes: ClassVar[int] = SMALL
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


class SessionDescribe(Wire, frozen=True, kw_only=True):
    """Asks for one summary, with what the store holds of the session's KV."""

    tenant: Tenant
    session_id: SessionId


class SessionDescribed(Wire, frozen=True, kw_only=True):
    """Answer to `SessionDescribe` and `SessionPin`."""

    session: SessionSummary


class SessionPin(Wire, frozen=True, kw_only=True):
    """Binds a session to a group, or frees it. Routers hear of it by `Pinned`.

    group: empty to free it. Whether there is such a group is for the caller to find out.
    """

    tenant: Tenant
    session_id: SessionId
    group: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")] = ""


class Pinned(Wire, frozen=True, kw_only=True):
    """A pin, told to all routers when it changes; an empty group: the session is free again."""

    tenant: Tenant
    session_id: StoredSessionId
    group: str = ""


class PinList(Wire, frozen=True, kw_only=True):
    """Asks for all pins of all tenants; `cursor` continues an earlier page."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    cursor: str = ""


class PinPage(Wire, frozen=True, kw_only=True):
    """Answer to `PinList`; an empty cursor marks the last page."""

    pins: list[Pinned]
    cursor: str = ""


class SessionTurn(Wire, frozen=True, kw_only=True):
    """Where a session's KV is now, and of how many tokens."""

    tenant: Tenant
    session_id: SessionId
    group: GroupName
    num_tokens: int = 0


class SessionTurns(Wire, frozen=True, kw_only=True):
    """Told to all routers by a leader: turns that ended there, and sessions that were moved there."""

    turns: list[SessionTurn]


class SessionGone(Wire, frozen=True, kw_only=True):
    """Told to all leaders and routers: the session was deleted, and nothing of it may be kept.

    names: of its KV blocks that no other session holds, packed as in `BlockNames`.
    """

    tenant: Tenant
    session_id: StoredSessionId
    names: bytes = b""


class SessionRouteQuery(Wire, frozen=True, kw_only=True):
    """Asks any router where a session of that model would go."""

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    session_id: SessionId
    model: ModelName


class SessionRoute(Wire, frozen=True, kw_only=True):
    """Answer to `SessionRouteQuery`.

    home: the preferred group; empty: no group of the model is ready. pinned_group, last_group: as far as this
    router knows. groups: of the model, with their states.
    """

    home: str = ""
    pinned_group: str = ""
    last_group: str = ""
    groups: dict[str, str] = {}


class SessionDelete(Wire, frozen=True, kw_only=True):
    """Deletes a session: text, tokens, pin, and the KV that no other session holds.

    Leaders and routers hear of it by `SessionGone`. A turn that began before it is not stored any more.
    """

    tenant: Tenant
    session_id: SessionId


class SessionFound(Wire, frozen=True, kw_only=True):
    """Answer to `SessionGet`."""

    record: SessionRecord


class SessionCommitted(Wire, frozen=True, kw_only=True):
    """Answer to `SessionCommit`: what was not stored, as positions in `records`. All other records were.

    stale: the stored version was newer already and was kept. too_large: the record is over the limit of its
    bytes or messages. deleted: those of `stale` whose session was deleted meanwhile. over_quota: the tenant
    may store no more sessions, or no more bytes of them.
    """

    stale: list[int] = []
    too_large: list[int] = []
    deleted: list[int] = []
    over_quota: list[int] = []


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
