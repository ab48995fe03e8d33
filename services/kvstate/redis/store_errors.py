"""Errors of the stores on Redis, in the terms of callers."""

from shared.errors import DISK_FULL, Unavailable

SESSION_STORE, KV_STORE = "session_store", "kv_store"  # the `reason` in errors


class StoreAway(Unavailable):
    """The store refused or closed a connection, or did not answer in time.

    Attributes:
        refused: Whether the store is certainly away, as a time-out does not show.
    """

    def __init__(self, message: str, *, reason: str = SESSION_STORE, refused: bool) -> None:
        super().__init__(message, reason=reason)
        self.refused = refused


class StoreFull(Unavailable):
    """The store answers, but has no memory for what was to be written."""


class StoreUnwritable(Unavailable):
    """The store answers and can be read, but writes nothing, since its disk is full or fails.

    Args:
        cause: What Redis said.
        reason: The reason, unless the disk is full: then it is `DISK_FULL`.
    """

    def __init__(self, name: str, cause: str, *, reason: str = SESSION_STORE) -> None:
        full = any(text in cause for text in ("No space left", "quota exceeded"))
        super().__init__(
            f"the {name} cannot write to its disk: {cause.rpartition(': ')[2]}; "
            f"{'free some space there' if full else 'see the log of Redis'}, and it goes on by itself",
            reason=DISK_FULL if full else reason,
            retry_after_s=5,
        )
