"""Joins turns of a session that went on from the same record: the one stored second goes after the other.

A record lists its last turns (`TurnMark`), so that they can be separated: put after the turns of another
group (`rebase`), or left out to go on where an answer was begun (`rewind`).
"""

from msgspec.structs import replace

from shared.messages import ChatMessage, SessionRecord, TurnMark
from shared.messages.sessions import MAX_MARKS, MAX_SESSION_MESSAGES


def follows(record: SessionRecord, stored: SessionRecord) -> bool:
    """Returns whether a record may replace a stored one: it is later, and was made from it.

    The same rule as in the store. Records without marks (imported ones) go by their version alone.
    """
    if record.version <= stored.version:
        return False
    if not record.recent or not stored.last_request:
        return True
    return any(stored.last_request in {mark.request_id, mark.replaces} for mark in record.recent)


def rebase(mine: SessionRecord, theirs: SessionRecord) -> SessionRecord | None:
    """Returns `theirs` with the turns of `mine` that it does not have; `theirs` itself if there are none.

    Returns:
        The joined record. None if they cannot be joined: the session was begun anew meanwhile, its turns are
        not known, or it would have more messages than a session may have.
    """
    known = {theirs.last_request} | {mark.call_key or mark.request_id for mark in theirs.recent}
    new: list[TurnMark] = []
    common = False
    for mark in reversed(mine.recent):
        if (mark.call_key or mark.request_id) in known:
            common = True
            break
        new.append(mark)
        if mark.whole:  # what was there before does not matter
            break
    new.reverse()
    if not new:
        return theirs if common else None
    began_here = new[0].whole or sum(mark.size for mark in new) >= len(_without_system(mine.messages))
    if not common and not began_here and (mine.created_ms != theirs.created_ms or len(new) >= MAX_MARKS):
        return None
    size = sum(mark.size for mark in new)
    messages, said = mine.messages, _without_system(mine.messages)[-size:]
    if not new[0].whole:
        system = [*_system(mine.messages)] or [*_system(theirs.messages)]
        messages = [*system, *_without_system(theirs.messages), *said]
        if len(messages) > MAX_SESSION_MESSAGES:
            return None
    marks = [replace(mark, version=theirs.version + index) for index, mark in enumerate(new, 1)]
    return replace(
        mine,
        version=theirs.version + len(new),
        turns=theirs.turns + len(new),
        created_ms=theirs.created_ms,
        messages=messages,
        recent=[*theirs.recent, *marks][-MAX_MARKS:],
    )


def rewind(record: SessionRecord, version: int) -> SessionRecord | None:
    """Returns the record as it was at that version, without its tokens; None if that is not known."""
    later = [mark for mark in record.recent if mark.version > version]
    if version < 1 or len(later) != record.version - version or any(mark.whole for mark in later):
        return None
    size = sum(mark.size for mark in later)
    before = record.recent[: len(record.recent) - len(later)]
    return replace(
        record,
        version=version,
        turns=record.turns - len(later),
        messages=record.messages[: len(record.messages) - size],
        token_ids=b"",
        recent=before,
        last_request=before[-1].request_id if before else "",
    )


def _system(messages: list[ChatMessage]) -> list[ChatMessage]:
    return messages[:1] if messages and messages[0].role == "system" else []


def _without_system(messages: list[ChatMessage]) -> list[ChatMessage]:
    return messages[len(_system(messages)) :]
