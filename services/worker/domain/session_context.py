"""What a session's history adds to a request, and what the session is after the turn.

The rule of `SessionRef.mode`: `append` puts the request's messages after the history, `replace` takes them
as the whole conversation, `auto` appends when none of them is the assistant's. Where records are kept and
how they are looked up is decided in `leader/sessions.py`.
"""

from dataclasses import dataclass

from shared.messages import ChatMessage, SessionRecord, SessionRef


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a session: the conversation that the model sees, and the record before it.

    commits: false when the store did not say what it has, so that nothing may be written over it. stored: the
        record is the one that this turn has made, when its request came for the first time.
    """

    session: SessionRef
    messages: list[ChatMessage]
    record: SessionRecord | None = None
    commits: bool = True
    stored: bool = False

    @property
    def number(self) -> int:
        """Turns before this one."""
        return self.record.turns - self.stored if self.record is not None else 0


def appends(messages: list[ChatMessage], session: SessionRef) -> bool:
    """Whether the request goes on from the stored conversation, so that it depends on the record."""
    if session.mode == "auto":
        return all(message.role != "assistant" for message in messages)
    return session.mode == "append"


def conversation(
    messages: list[ChatMessage], session: SessionRef, record: SessionRecord | None
) -> list[ChatMessage]:
    """The whole conversation that the model is to see; a leading system message replaces the stored one."""
    if record is None or not appends(messages, session):
        return messages
    history = record.messages
    if history and history[0].role == "system" and messages[0].role == "system":
        return [messages[0], *history[1:], *messages[1:]]
    if messages[0].role == "system":
        return [messages[0], *history, *messages[1:]]
    return [*history, *messages]


def turn_of(
    messages: list[ChatMessage], session: SessionRef, record: SessionRecord | None, request_id: str
) -> Turn:
    """The turn that a request is, after that record.

    A request whose answer got lost on the way comes again, perhaps after its turn was stored: then the record
    has the conversation that the model saw, and its answer, which is not to be stored a second time.
    """
    if record is not None and record.last_request == request_id and record.messages:
        return Turn(session, record.messages[:-1], record, commits=False, stored=True)
    return Turn(session, conversation(messages, session, record), record)


def next_record(
    turn: Turn,
    *,
    tenant: str,
    model: str,
    group: str,
    answer: str,
    token_ids: bytes,
    now_ms: int,
    request_id: str = "",
) -> SessionRecord:
    """The session after the turn: the conversation that the model saw, and its answer.

    token_ids: prompt and answer, packed.
    """
    record = turn.record
    return SessionRecord(
        session_id=turn.session.session_id,
        tenant=tenant,
        model=model,
        version=1 + (record.version if record else 0),
        messages=[*turn.messages, ChatMessage(role="assistant", content=answer)],
        token_ids=token_ids,
        turns=1 + (record.turns if record else 0),
        last_group=group,
        created_ms=record.created_ms if record else now_ms,
        updated_ms=now_ms,
        last_request=request_id,
    )
