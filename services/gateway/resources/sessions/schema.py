"""Bodies of requests and answers of the session routes, with descriptions for the OpenAPI document."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.formats.chat.schema import Messages
from services.gateway.formats.fields.field_types import NAME
from shared.client.calls.session_admin import SessionView
from shared.messages import ChatMessage, SessionSummary, Warmed

SessionName = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
Group = Annotated[str, Field(min_length=1, max_length=64, description="A worker group of the model.")]


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class NewSession(_Asked):
    """The body of `POST /v1/sessions`; all of it is optional."""

    session_id: Annotated[SessionName | None, Field(description="Absent: one is made.")] = None
    model: Annotated[
        str | None, Field(max_length=128, description="May be left out where only one is served.")
    ] = None
    messages: Annotated[Messages, Field(description="What the conversation begins with.")] = Field(
        default_factory=list
    )
    pinned_group: Group | None = None


class ToGroup(_Asked):
    """The body of the routes that pin and move a session."""

    group: Group


class _Shown(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class SessionObject(_Shown):
    """A session without its text."""

    object: Literal["session"] = "session"
    session_id: str
    tenant: str
    title: Annotated[str | None, Field(description="How its first user message begins; null: it has none.")]
    model: str
    turns: Annotated[int, Field(description="Turns that were answered.")]
    num_messages: int
    tokens: Annotated[int, Field(description="Of the last turn's prompt and answer: the whole conversation.")]
    bytes: Annotated[int, Field(description="Of its KV in the store, with what it shares.")]
    blocks: Annotated[int, Field(description="KV blocks in the store, of 16 tokens each.")]
    byte_seconds: Annotated[float, Field(description="Bytes times the seconds that they were kept.")]
    pinned_group: Annotated[str | None, Field(description="Where all its turns go.")]
    last_group: Annotated[str | None, Field(description="Where its KV was last.")]
    created_ms: Annotated[int, Field(description="Milliseconds since 1970.")]
    updated_ms: int
    age_s: Annotated[float, Field(description="Since it began.")]
    ttl_s: Annotated[int, Field(description="Until it is forgotten without a turn; 0: not known.")]


class GroupKV(_Shown):
    """A group that has KV of the session in memory."""

    group: str
    cached_tokens: Annotated[int, Field(description="Tokens from the first on that need no computing there.")]
    tensor_parallel: int
    kv_format: str


class ShownMessage(_Shown):
    """One message of the conversation."""

    role: str
    content: str
    name: str | None = None


class SessionDetail(SessionObject):
    """A session with the groups that have its KV and the one that its next turn would go to."""

    home: Annotated[str | None, Field(description="Its preferred group; null: no router knows one.")]
    groups: Annotated[list[GroupKV], Field(description="Groups that have KV of it in memory now.")]
    messages: Annotated[list[ShownMessage] | None, Field(description="With `messages=true` only.")] = None


class SessionListing(_Shown):
    """A page of sessions, newest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]
    has_more: bool
    next_cursor: Annotated[str | None, Field(description="`cursor` of the next page.")]


class MovedSession(_Shown):
    """The tokens of the session that the group has now."""

    object: Literal["session.moved"] = "session.moved"
    session_id: str
    group: str
    tokens: Annotated[int, Field(description="Of the session.")]
    cached_tokens: Annotated[int, Field(description="Of those, in the group's memory now.")]
    fetched_tokens: Annotated[int, Field(description="Of those, fetched from the store for the move.")]


def session_object(summary: SessionSummary, now_ms: int) -> SessionObject:
    """A session as lists and changes show it."""
    return SessionObject(
        session_id=summary.session_id,
        tenant=summary.tenant,
        title=summary.title or None,
        model=summary.model,
        turns=summary.turns,
        num_messages=summary.num_messages,
        tokens=summary.num_tokens,
        bytes=summary.kv_bytes,
        blocks=summary.kv_blocks,
        byte_seconds=summary.kv_byte_seconds,
        pinned_group=summary.pinned_group or None,
        last_group=summary.last_group or None,
        created_ms=summary.created_ms,
        updated_ms=summary.updated_ms,
        age_s=max(0, now_ms - summary.created_ms) / 1000,
        ttl_s=summary.ttl_s,
    )


def session_detail(view: SessionView, now_ms: int, *, messages: bool) -> SessionDetail:
    """A session with all that is known of it; with its text if `messages` is set."""
    shown = session_object(view.summary, now_ms).model_dump()
    route = view.route
    if route is not None and route.last_group:
        shown["last_group"] = route.last_group  # after a move only routers know it
    groups = [
        GroupKV(
            group=holding.group,
            cached_tokens=holding.cached_tokens,
            tensor_parallel=holding.tensor_parallel,
            kv_format=holding.kv_format,
        )
        for holding in view.holdings
    ]
    text = [_shown(message) for message in view.record.messages] if messages else None
    return SessionDetail(**shown, home=(route.home or None) if route else None, groups=groups, messages=text)


def moved_session(session_id: str, warmed: Warmed) -> MovedSession:
    """The answer to a move."""
    return MovedSession(
        session_id=session_id,
        group=warmed.group,
        tokens=warmed.num_tokens,
        cached_tokens=warmed.cached_tokens,
        fetched_tokens=warmed.fetched_tokens,
    )


def _shown(message: ChatMessage) -> ShownMessage:
    return ShownMessage(role=message.role, content=message.content, name=message.name or None)
