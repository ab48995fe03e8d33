"""The contract of a session store.

`redis_sessions.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from services.kvstate.domain.session_merge import PageCursor, SessionEntry, Verdict
from shared.messages import Pinned, SessionSummary

MAX_TENANTS = 1000  # of one `tally`


class PutOutcome(NamedTuple):
    """The outcome of each entry, and how many spare sessions were dropped to make room."""

    verdicts: list[Verdict]
    dropped: int = 0


class PinOutcome(Enum):
    """The outcome of a pin. TENANT_FULL, ALL_FULL: the tenant, or all tenants, have as many as they may."""

    DONE = "done"
    NO_SESSION = "no_session"
    TENANT_FULL = "tenant_full"
    ALL_FULL = "all_full"


class SessionTally(NamedTuple):
    """Counts of sessions of some tenants.

    Attributes:
        num_bytes: Bytes of those.
        tenants: How many tenants were counted.
        nearly_full: How many of them are close to a quota.
        used_memory: Bytes of memory that Redis uses.
        maxmemory: Bytes that Redis may use; 0: no limit.
    """

    sessions: int = 0
    num_bytes: int = 0
    tenants: int = 0
    nearly_full: int = 0
    used_memory: int = 0
    maxmemory: int = 0


class SummaryPage(NamedTuple):
    """Summaries, newest first; `last` is None on the last page."""

    sessions: list[SessionSummary]
    last: PageCursor | None


class SessionFate(NamedTuple):
    """The state of a session: has a record, or was deleted and has not begun anew."""

    has_record: bool
    deleted: bool


class StoredPins(NamedTuple):
    """A page of pins in the order of the store; `last` is where to go on, empty on the last page."""

    pins: list[Pinned]
    last: str


class SessionStore(Protocol):
    """Records by tenant and session id, each for a limited time since its last commit.

    All methods may be called at the same time. Every one raises `Unavailable` (reason `session_store`) when
    the store cannot be reached, does not answer or refuses. A `put` that raised may have stored some of its
    entries, and may be repeated as it is.
    """

    async def get_record(self, tenant: str, session_id: str) -> bytes | None:
        """Returns the record as it was put, or None if there is none or it has expired."""
        ...

    async def put_records(self, entries: Sequence[SessionEntry]) -> PutOutcome:
        """Stores entries by the merge rule of `session_merge.judge` and within quotas, each atomically.

        Entries are judged in their order, each against what the ones before it left. Where a quota leaves no
        room, the tenant's oldest spare sessions go, and no others (`session_quota.py`).

        Raises:
            StoreFull: There is no memory for them; so do all methods that change something.
            StoreUnwritable: The disk is full; so do all methods that change something.
        """
        ...

    async def list_page(
        self, tenant: str, limit: int, after: PageCursor | None, *, spare: bool = True
    ) -> SummaryPage:
        """Returns up to `limit` summaries by time of the last commit and then by id, both descending.

        Spare sessions are left out unless `spare` is set. A session that is committed while a caller turns
        pages may be seen twice or not at all.
        """
        ...

    async def delete_session(self, tenant: str, session_id: str) -> bool:
        """Removes a record, its pin and its entry in the list; returns False if there was none.

        Only an entry whose session began later brings it back. As many deletions of a tenant are remembered
        one by one as it may have sessions; up to the time of the oldest of them every session that is not
        stored counts as deleted.
        """
        ...

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """Returns when a session was deleted, in Unix milliseconds.

        None means that it was not deleted, that it has begun anew since, or that the store no longer knows.
        """
        ...

    async def fates(self, keys: Sequence[tuple[str, str]]) -> list[SessionFate]:
        """Returns the fate of each of these tenants and session ids.

        A session without a record that was not deleted has expired, or has no turn yet.
        """
        ...

    async def describe_session(self, tenant: str, session_id: str) -> SessionSummary | None:
        """Returns the summary with its pin, as in `page`, or None if there is no such session."""
        ...

    async def pin_session(self, tenant: str, session_id: str, group: str) -> PinOutcome:
        """Pins a session to a group within the quotas of pins; an empty group frees it."""
        ...

    async def list_pins(self, limit: int, after: str) -> StoredPins:
        """Returns about `limit` pins of all tenants that follow `after`, an earlier `last` or empty."""
        ...

    async def can_write(self) -> bool:
        """Returns whether the store takes writes, which it does not while its disk is full or fails."""
        ...

    async def tally(self) -> SessionTally:
        """Counts sessions of up to `MAX_TENANTS` tenants, and takes expired ones off their accounts."""
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
