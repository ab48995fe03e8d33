"""Session records and the calls of the KV state service that read and write them.

A record contains the text and the tokens of a conversation, and where it was last served. Every call names
the tenant; a session of another tenant does not exist for the caller. Pins and stored KV are kept beside the
record, since they change without a turn.
"""

from typing import Annotated, ClassVar

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
)
from shared.messages.conversation import ChatMessage

MAX_MARKS = 16
# Of a stored session. A context of 131,072 tokens holds so many of 16 tokens each; what messages cost beside
# their text (to read, to check, to render) has a bound by it, however many empty ones fit into a file.
MAX_SESSION_MESSAGES = 8192


class TurnMark(Wire, frozen=True, kw_only=True):
    """One of the last turns of a session.

    `size` counts the messages that it added at the end of the conversation, its answer included.

    Attributes:
        version: Version of the session after the turn.
        whole: The turn brought the whole conversation in place of the history.
        call_key: Of the request.
        call_digest: Of the request.
        replaces: The request of the turn that this one replaced.
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

    Attributes:
        token_ids: Prompt and answer of the last turn, as the engine computed them.
        last_request: Request id of the last turn, which may come again if its answer got lost.
        recent: The last turns, at most `MAX_MARKS`, the newest at the end. A record continues another one if
            it lists the last request of that one.
        model: The base model.
        adapter: Fingerprint of the adapter that computed the last turn; empty: the base alone.
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
    adapter: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{32})?\Z")] = ""


class SessionSummary(Wire, frozen=True, kw_only=True):
    """A session without its text.

    Attributes:
        pinned_group: The group to which all its turns go. Empty: routers choose.
        kv_bytes: Bytes of its stored KV, shared blocks included.
        kv_blocks: Blocks of its stored KV, shared ones included.
        kv_byte_seconds: Bytes times the seconds they were kept so far.
        title: How its first user message begins, in one line; empty if it has none.
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
    title: str = ""


class SessionGet(Wire, frozen=True, kw_only=True):
    """Asks for one record.

    Attributes:
        said: Digest of a turn's messages, as one leader asks another, which answers with a `TurnState`.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    session_id: SessionId
    said: Annotated[str, msgspec.Meta(max_length=64)] = ""


class SessionCommit(Wire, frozen=True, kw_only=True):
    """Stores records, each for itself."""

    records: Annotated[list[SessionRecord], msgspec.Meta(min_length=1)]


class SessionList(Wire, frozen=True, kw_only=True):
    """Asks for summaries, newest first. `cursor` continues an earlier page; empty: the first page.

    Attributes:
        spare: With spare sessions: those whose id was made for one request and that had no second turn.
    """

    tenant: Tenant
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str = ""
    spare: bool = True


class SessionDescribe(Wire, frozen=True, kw_only=True):
    """Asks for one summary, with what the store holds of the session's KV."""

    tenant: Tenant
    session_id: SessionId


class SessionDescribed(Wire, frozen=True, kw_only=True):
    """Answer to `SessionDescribe` and `SessionPin`."""

    session: SessionSummary


class SessionPin(Wire, frozen=True, kw_only=True):
    """Pins a session to a group, or frees it. `Pinned` announces it to routers.

    Attributes:
        group: Empty frees the session. The caller checks whether there is such a group.
    """

    tenant: Tenant
    session_id: SessionId
    group: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")] = ""


class Pinned(Wire, frozen=True, kw_only=True):
    """A changed pin, announced to all routers. An empty group: the session is free."""

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
    """The group that has a session's KV now, and the number of its tokens."""

    tenant: Tenant
    session_id: SessionId
    group: GroupName
    num_tokens: int = 0


class SessionTurns(Wire, frozen=True, kw_only=True):
    """Turns that ended at a leader and sessions that were moved to it, announced to all routers."""

    turns: list[SessionTurn]


class SessionGone(Wire, frozen=True, kw_only=True):
    """A session was deleted, and nothing of it may be kept; announced to all leaders and routers.

    Attributes:
        names: Names of its KV blocks that no other session holds, packed as in `BlockNames`.
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

    Attributes:
        home: The preferred group. Empty: no group of the model is ready.
        pinned_group: The group it is pinned to, as far as this router knows.
        last_group: The group that last served it, as far as this router knows.
        groups: The groups of the model, with their states.
    """

    home: str = ""
    pinned_group: str = ""
    last_group: str = ""
    groups: dict[str, str] = {}


class SessionDelete(Wire, frozen=True, kw_only=True):
    """Deletes a session: text, tokens, pin, and the KV that no other session holds.

    `SessionGone` announces it to leaders and routers. A turn that began before the deletion is not stored.
    """

    tenant: Tenant
    session_id: SessionId


class SessionFound(Wire, frozen=True, kw_only=True):
    """Answer to `SessionGet`."""

    record: SessionRecord


class TurnState(Wire, frozen=True, kw_only=True):
    """Answer of a leader to a `SessionGet` with `said`: what it knows of a session's turns in its group.

    Attributes:
        runs: A turn that says the same runs there, and its gateway confirms deliveries.
        undelivered: The request whose answer has ended there and is not confirmed by its gateway yet.
    """

    runs: bool = False
    undelivered: str = ""


class SessionCommitted(Wire, frozen=True, kw_only=True):
    """Answer to `SessionCommit`: positions in `records` that were not stored. All other records were.

    Attributes:
        stale: The store has a newer version, and kept it.
        too_large: The record is over the limit of bytes or messages.
        deleted: Those of `stale` whose session was deleted meanwhile.
        over_quota: The tenant is at its quota of sessions or of their bytes.
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
