"""What is stored of a session, when a commit replaces it, and where it stands in the list. Pure.

The record itself stays as the leader sent it; beside it are its version and a summary, so that lists do
not read texts and the merge rule does not read records.
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


class Verdict(Enum):
    """What to do with a commit."""

    STORE = "store"
    KEEP = "keep"  # the very same commit again: nothing to do, and no error
    STALE = "stale"
    DELETED = "deleted"  # the session was deleted after this record's was begun
    OVER_QUOTA = "over_quota"  # the tenant has no room for it, see `session_quota.py`

    @property
    def stored(self) -> bool:
        """Whether the store has the record now."""
        return self in {Verdict.STORE, Verdict.KEEP}


class SessionEntry(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into a store.

    score_ms: orders the tenant's list. created_ms, updated_ms: the record's. spare: see `session_quota.py`.
    last_request, lineage: the ids of its last turn's request, and of those of all the turns that it lists and
    of turns that these have replaced.
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
    """The last entry of the page before."""

    score_ms: int
    session_id: str

    def passed(self, score_ms: int, session_id: str) -> bool:
        """Whether an entry was on that page or on an earlier one; the order is newest first, then by id."""
        return (score_ms, session_id) >= (self.score_ms, self.session_id)


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """What a store has of a session: its record, and when the id was deleted last.

    version: 0: there is no record. deleted_ms: also the time up to which the tenant's deletions are no longer
    remembered one by one; -1: none is known.
    """

    version: int = 0
    record: bytes = b""
    last_request: str = ""
    deleted_ms: int = -1


def judge(stored: StoredSession, entry: SessionEntry, late_ms: int = 0) -> Verdict:
    """The merge rule: a higher version wins if it was made from the stored one; of two equal ones, the first.

    Two groups that served a turn each from the same history both commit version n+1. The second is stale, and
    its leader learns so. A commit that was sent twice is not. A record that lists its turns (`lineage`), and
    not the stored one's last, was made without it and is stale, however high its version.
    A session that was begun before a deletion stays deleted, also if another one has its id since. A later
    turn of one that is not stored, and that ended up to `late_ms`, counts as deleted: it may have been.
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

    A leader whose clock is wrong by more than the time records live must not make its sessions vanish from
    lists or head them for ever: such a time is replaced by `now_ms` for the order.
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


def make_cursor(score_ms: int, session_id: str) -> str:
    """The text that `read_cursor` understands."""
    return keys.cursor(score_ms, session_id)


def read_cursor(text: str) -> PageCursor | None:
    """Where to go on; None for an empty text.

    Raises:
        InvalidRequest: it is none of ours.
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
