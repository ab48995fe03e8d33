"""The contract of a session store.

`redis_sessions.py` is the one that serves, `memory_sessions.py` the one for tests and single processes.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from services.kvstate.domain.session_merge import PageCursor, SessionEntry, Verdict
from shared.messages import Pinned, SessionSummary

MAX_TENANTS = 1000  # that one `tally` looks at


class PutOutcome(NamedTuple):
    """What became of each entry, and how many spare sessions went to make room for them."""

    verdicts: list[Verdict]
    dropped: int = 0


class PinOutcome(Enum):
    """What became of a pin. TENANT_FULL, ALL_FULL: as many as the tenant, or all tenants, may have."""

    DONE = "done"
    NO_SESSION = "no_session"
    TENANT_FULL = "tenant_full"
    ALL_FULL = "all_full"


class SessionTally(NamedTuple):
    """What is stored, of `tenants` tenants. nearly_full: those that are close to a quota of theirs."""

    sessions: int = 0
    num_bytes: int = 0
    tenants: int = 0
    nearly_full: int = 0


class SummaryPage(NamedTuple):
    """Summaries, newest first; `last` is None when nothing follows."""

    sessions: list[SessionSummary]
    last: PageCursor | None


class SessionFate(NamedTuple):
    """What became of a session: whether it has a record, and whether it was deleted and not begun anew."""

    has_record: bool
    deleted: bool


class StoredPins(NamedTuple):
    """Pins in the order of the store; `last` is empty when nothing follows, else where to go on."""

    pins: list[Pinned]
    last: str


class SessionStore(Protocol):
    """Records by tenant and session id, each for a limited time since its last commit.

    All methods may be called at the same time. Every one raises `Unavailable` (reason `session_store`) when
    the store cannot be reached, does not answer or refuses; a `put` that raised may have stored some of its
    entries, and may be repeated as it is.
    """

    async def get(self, tenant: str, session_id: str) -> bytes | None:
        """The record as it was put; None: there is none, or its time is over."""
        ...

    async def put(self, entries: Sequence[SessionEntry]) -> PutOutcome:
        """Stores entries by the merge rule of `session_merge.judge` and within quotas, each atomically.

        Entries are judged in their order, each against what the ones before it left. Where a quota leaves no
        room, the tenant's oldest spare sessions go, and no others (`session_quota.py`).

        Raises:
            StoreFull: There is no memory for them; so do all methods that change something.
            StoreUnwritable: The disk is full; so do all methods that change something.
        """
        ...

    async def page(self, tenant: str, limit: int, after: PageCursor | None) -> SummaryPage:
        """Up to `limit` summaries, by time of the last commit and then by id, both descending.

        A session that is committed while a caller turns pages may be seen twice or not at all.
        """
        ...

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Removes a record, its pin and its place in the list; False: there was none.

        Only an entry of a session begun later than now brings it back. As many deletions of a tenant are
        remembered one by one as it may have sessions; before those, all that is not stored counts as deleted.
        """
        ...

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """When it was deleted, in milliseconds of Unix time, for as long as the store remembers.

        None: it was not, or has begun anew since; then a record that is missing has expired or was lost.
        """
        ...

    async def fates(self, places: Sequence[tuple[str, str]]) -> list[SessionFate]:
        """Of each of these tenants and session ids; what is neither has expired, or has no turn yet."""
        ...

    async def describe(self, tenant: str, session_id: str) -> SessionSummary | None:
        """The summary with its pin, as in `page`; None: there is no such session."""
        ...

    async def pin(self, tenant: str, session_id: str, group: str) -> PinOutcome:
        """Keeps a group beside the record while there is one, within the quotas of pins; empty: none."""
        ...

    async def pins(self, limit: int, after: str) -> StoredPins:
        """Up to about `limit` pins of all tenants, behind `after`, which is empty or an earlier `last`."""
        ...

    async def can_write(self) -> bool:
        """Whether it takes writes; not while its disk is full or fails."""
        ...

    async def tally(self) -> SessionTally:
        """What is stored, of up to `MAX_TENANTS` tenants; what expired leaves the accounts by it."""
        ...

    async def close(self) -> None:
        """Lets go of all connections. May be called twice."""
        ...
