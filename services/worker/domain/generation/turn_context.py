"""Turns of sessions: the history that a request goes on from, and the session's record after the turn.

The rule of `SessionRef.mode`: `append` puts the request's messages after the history, `replace` takes them
as the whole conversation, `auto` appends when none of them is the assistant's. Records are kept and looked up
in `leader/sessions/`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.worker.domain.generation.session_merge import rewind
from shared.errors import Conflict, SessionNotFound
from shared.messages import ChatMessage, GenerateRequest, SessionRecord, SessionRef, TurnMark
from shared.messages.sessions import MAX_MARKS


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn of a session: the conversation that the model sees, and the record before it.

    Attributes:
        session: As the caller named it.
        messages: The whole conversation.
        record: The session before the turn; None if it is new.
        commits: False if the store did not answer, so that its record must not be replaced.
        stored: 0, or the index of this turn in the record, made when its request came for the first time: 1
            for the last turn, 2 for the one before it, and so on.
        added: Messages that the turn adds to the history; 0 if it brings the whole conversation.
        replaces: The record whose last turn this one replaces; `record` is the one before that.
    """

    session: SessionRef
    messages: list[ChatMessage]
    record: SessionRecord | None = None
    commits: bool = True
    stored: int = 0
    added: int = 0
    replaces: SessionRecord | None = None

    @property
    def number(self) -> int:
        """Turns before this one."""
        return max(0, self.record.turns - self.stored) if self.record is not None else 0

    @property
    def version(self) -> int:
        """Version of the session before this turn; 0 if it is new."""
        return max(0, self.record.version - self.stored) if self.record is not None else 0


class TurnAnswer(NamedTuple):
    """The answer of a turn: the assistant's message, and the packed tokens of prompt and answer."""

    message: ChatMessage
    token_ids: bytes


def appends(messages: list[ChatMessage], session: SessionRef) -> bool:
    """Returns whether the request goes on from the stored conversation, so that it depends on the record."""
    if session.mode == "auto":
        return all(message.role != "assistant" for message in messages)
    return session.mode == "append"


def conversation(
    messages: list[ChatMessage], session: SessionRef, record: SessionRecord | None
) -> list[ChatMessage]:
    """Returns the conversation for the model; a leading system message replaces the stored one."""
    if record is None or not appends(messages, session):
        return messages
    history = record.messages
    if history and history[0].role == "system" and messages[0].role == "system":
        return [messages[0], *history[1:], *messages[1:]]
    if messages[0].role == "system":
        return [messages[0], *history, *messages[1:]]
    return [*history, *messages]


def check_conditions(session: SessionRef, record: SessionRecord | None) -> None:
    """Checks that a session is as the caller demands.

    Raises:
        SessionNotFound: There must be a session, and there is none.
        Conflict: It is not at the version that the caller named.
    """
    name, version = session.session_id, record.version if record is not None else 0
    if session.must_exist and record is None:
        raise SessionNotFound(
            f"no session {name!r}: it expired, was deleted, was lost with its store, or its first turn did "
            "not end; start a new one, or send the whole conversation",
            session_id=name,
        )
    if session.if_version >= 0 and version != session.if_version:
        raise Conflict(
            f"session {name!r} is at version {version}, not {session.if_version}: it has changed since; read "
            "it and send the turn again",
            reason="session_changed",
            version=version,
        )


def added_by(messages: list[ChatMessage], session: SessionRef) -> int:
    """Returns how many messages a request adds to the history; 0 if it brings the whole conversation."""
    if not appends(messages, session):
        return 0
    return len(messages) - (messages[0].role == "system")


def new_turn(request: GenerateRequest) -> TurnContext | None:
    """Returns the turn of a session that has no record yet; None without a session."""
    if request.session is None or request.messages is None:
        return None
    return TurnContext(request.session, request.messages, added=added_by(request.messages, request.session))


def turn_of(request: GenerateRequest, record: SessionRecord | None, resumed_at: int = -1) -> TurnContext:
    """Returns the turn of a request, after that record.

    A request whose answer was lost comes again, perhaps after its turn was stored: then the record has the
    conversation that the model saw, and its answer, which must not be stored a second time.

    Args:
        request: Of a session. With a `call_key` it counts once, and may come again under another id.
        record: The session's newest record.
        resumed_at: The session's version when the answer was begun; -1 if it was not. Turns that were stored
            since come before this one in the record, but its answer does not go on from them.

    Raises:
        Conflict: A turn with the same `call_key` was another call.
    """
    session, messages = request.session, request.messages
    assert session is not None
    assert messages is not None
    call_key = request.call_key
    if record is not None and (position := _position_of(request.request_id, call_key, record)):
        if call_key and record.recent and record.recent[-position].call_digest != request.call_digest:
            raise Conflict(
                "this Idempotency-Key was used for another call; use a new key for each call",
                reason="idempotency_key_reused",
            )
        earlier = rewind(record, record.recent[-position].version) if position > 1 else record
        if earlier is not None:
            seen = earlier.messages[:-1] + (messages[-1:] if request.continues else [])
            return TurnContext(session, seen, record, commits=False, stored=position)
    if record is not None and 0 <= resumed_at < record.version:
        record = (rewind(record, resumed_at) or record) if resumed_at else None
    return TurnContext(
        session, conversation(messages, session, record), record, added=added_by(messages, session)
    )


def repeats(messages: list[ChatMessage], session: SessionRef, record: SessionRecord) -> bool:
    """Returns whether a request says the same as the session's last turn."""
    mark = record.recent[-1] if record.recent else None
    if mark is None or mark.whole or mark.call_key or mark.request_id != record.last_request:
        return False
    if not appends(messages, session):
        return False
    system, said = (messages[:1], messages[1:]) if messages[0].role == "system" else ([], messages)
    return record.messages[-mark.size : -1] == said and record.messages[: len(system)] == system


def in_place_of_last(
    messages: list[ChatMessage], session: SessionRef, record: SessionRecord
) -> TurnContext | None:
    """Returns a turn that replaces the record's last one, which says the same; None if it cannot."""
    before = rewind(record, record.recent[-1].version - 1)
    if before is None and record.turns > 1:
        return None
    return TurnContext(
        session,
        conversation(messages, session, before),
        before,
        added=added_by(messages, session),
        replaces=record,
    )


def _position_of(request_id: str, call_key: str, record: SessionRecord) -> int:
    """Returns which of the record's turns has that id or key: 1 for the last one, 0 for none."""
    if record.last_request == request_id and record.messages:
        return 1
    for index, mark in enumerate(reversed(record.recent), 1):
        if mark.request_id == request_id or (call_key and mark.call_key == call_key):
            return index
    return 0


def next_record(
    turn: TurnContext,
    request: GenerateRequest,
    answer: TurnAnswer,
    *,
    model: str,
    group: str,
    now_ms: int,
    adapter: str = "",
) -> SessionRecord:
    """Returns the session after a turn: the conversation that the model saw, and its answer.

    Args:
        answer: The first choice of the turn.
        now_ms: Unix time in milliseconds.
        adapter: Fingerprint of the adapter that computed it; empty: the base alone.
    """
    record, replaced = turn.record, turn.replaces
    began = replaced or record
    version = 1 + (replaced.version if replaced is not None else turn.version)
    whole = turn.added == 0
    # the answer has the whole of a message that it goes on from
    messages = [*(turn.messages[:-1] if request.continues else turn.messages), answer.message]
    size = len(messages) if whole else turn.added + (not request.continues)
    mark = TurnMark(
        request_id=request.request_id,
        version=version,
        size=size,
        whole=whole,
        call_key=request.call_key,
        call_digest=request.call_digest,
        replaces=replaced.last_request if replaced is not None else "",
    )
    return SessionRecord(
        session_id=turn.session.session_id,
        tenant=request.tenant,
        model=model,
        adapter=adapter,
        version=version,
        messages=messages,
        token_ids=answer.token_ids,
        turns=1 + (record.turns if record else 0),
        last_group=group,
        created_ms=began.created_ms if began else now_ms,
        updated_ms=now_ms,
        last_request=request.request_id,
        recent=[*(record.recent if record else []), mark][-MAX_MARKS:],
    )
