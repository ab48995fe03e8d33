"""Decides whether a commit replaces the stored session, and where a session stands in the list. Pure.

A store keeps the record as the leader sent it, and beside it the version and a summary, so that lists and the
merge rule need not read records.
"""

from enum import Enum
from urllib.parse import unquote

import msgspec

from services.kvstate.domain import keys
from shared.codec import encode
from shared.errors import InvalidRequest
from shared.identity import is_made_session_id
from shared.messages import SessionRecord, SessionSummary

_TOKEN_BYTES = 4
_TITLE_BYTES = 96  # of UTF-8: a page of 1,000 summaries has to fit into a message


class Verdict(Enum):
    """The outcome of a commit."""

    STORE = "store"
    KEEP = "keep"  # the same commit again: nothing to do, and no error
    STALE = "stale"
    DELETED = "deleted"  # the session was deleted after this record's was begun
    OVER_QUOTA = "over_quota"  # the tenant has no room for it, see `session_quota.py`

    @property
    def stored(self) -> bool:
        """Returns whether the store has the record now."""
        return self in {Verdict.STORE, Verdict.KEEP}


class SessionEntry(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into a store.

    Attributes:
        tenant: Of the record, like the next ones.
        session_id: See `tenant`.
        version: See `tenant`.
        score_ms: Orders the list of the tenant.
        last_request: The request id of its last turn.
        lineage: The request ids of the turns that it lists, and of turns that these have replaced.
        spare: See `session_quota.py`.
    """

    tenant: str
    session_id: str
    version: int
    record: bytes
    summary: bytes
    score_ms: int
    created_ms: int = 0
    last_request: str = ""
    lineage: tuple[str, ...] = ()
    updated_ms: int = 0
    spare: bool = False


class PageCursor(msgspec.Struct, frozen=True, gc=False):
    """The last entry of a page."""

    score_ms: int
    session_id: str

    def passed(self, score_ms: int, session_id: str) -> bool:
        """Returns whether an entry was on that page or before; the order is by time, then id, descending."""
        return (score_ms, session_id) >= (self.score_ms, self.session_id)


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """The state of a session in a store.

    Attributes:
        version: Of the record; 0 if there is none.
        last_request: The request id of its last turn.
        deleted_ms: When a session of this id was deleted last, or the time up to which the tenant's deletions
            are no longer remembered one by one; -1 if neither is known.
    """

    version: int = 0
    record: bytes = b""
    last_request: str = ""
    deleted_ms: int = -1


def judge(stored: StoredSession, entry: SessionEntry, late_ms: int = 0) -> Verdict:
    """Applies the merge rule: a higher version wins if it continues the stored one; of equal ones, the first.

    Two groups that each served a turn from the same history both commit version n+1. The second commit is
    stale, and the reply to its leader says so. A commit that was sent twice is not stale. A record whose
    `lineage` lacks the last request of the stored record was made without it and is stale, however high its
    version.

    A session that began before a deletion stays deleted, also if another session has its id now. If no
    session is stored, a turn after the first one counts as deleted when it ended by `late_ms`: the session
    may have been deleted.

    Returns:
        The verdict, which is never `OVER_QUOTA`.
    """
    if entry.created_ms <= stored.deleted_ms:
        return Verdict.DELETED
    if not stored.version:
        late = entry.version > 1 and 0 < entry.updated_ms <= late_ms
        return Verdict.DELETED if late else Verdict.STORE
    if entry.version > stored.version:
        apart = stored.last_request and entry.lineage and stored.last_request not in entry.lineage
        return Verdict.STALE if apart else Verdict.STORE
    same = entry.version == stored.version and entry.record == stored.record
    return Verdict.KEEP if same else Verdict.STALE


def make_entry(record: SessionRecord, now_ms: int, ttl_ms: int) -> SessionEntry:
    """Prepares a record for a store.

    A leader with a wrong clock must not hide its sessions from lists, or keep them on top: a time that lies
    in the future, or further back than records live, is replaced by `now_ms` for the order.
    """
    score_ms = record.updated_ms if now_ms - ttl_ms < record.updated_ms <= now_ms else now_ms
    summary = SessionSummary(
        session_id=record.session_id,
        tenant=record.tenant,
        model=record.model,
        version=record.version,
        turns=record.turns,
        num_messages=len(record.messages),
        num_tokens=len(record.token_ids) // _TOKEN_BYTES,
        last_group=record.last_group,
        created_ms=record.created_ms,
        updated_ms=record.updated_ms,
        title=_title(record),
    )
    return SessionEntry(
        tenant=record.tenant,
        session_id=record.session_id,
        version=record.version,
        record=encode(record),
        summary=encode(summary),
        score_ms=score_ms,
        created_ms=record.created_ms,
        last_request=record.last_request,
        lineage=tuple(name for mark in record.recent for name in (mark.request_id, mark.replaces) if name),
        updated_ms=record.updated_ms,
        spare=record.turns == 1 and record.last_request != "" and is_made_session_id(record.session_id),
    )


def _title(record: SessionRecord) -> str:
    """How the first user message begins, in one line of at most `_TITLE_BYTES`."""
    said = next((message.content for message in record.messages if message.role == "user"), "")
    line = " ".join(said[: 4 * _TITLE_BYTES].split()).encode()
    if len(line) <= _TITLE_BYTES:
        return line.decode()
    cut = line[: _TITLE_BYTES - len("…".encode())].decode(errors="ignore")
    return f"{cut.rstrip()}…"


def make_cursor(score_ms: int, session_id: str) -> str:
    """Returns the text that `read_cursor` reads."""
    return keys.cursor(score_ms, session_id)


def read_cursor(text: str) -> PageCursor | None:
    """Returns the cursor in a text, or None for an empty text.

    Raises:
        InvalidRequest: The text is not a cursor.
    """
    if not text:
        return None
    score, colon, name = text.partition(":")
    if not colon or not name or not score.isdecimal() or len(score) > 16:
        raise InvalidRequest(
            f"cursor {text[:64]!r} is not one that a page ended with; leave it out to start anew",
            param="cursor",
        )
    return PageCursor(int(score), unquote(name))
