"""Bounds of the session records that a leader keeps."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionRecordLimits:
    """Times in seconds, sizes in bytes of text and tokens.

    Attributes:
        lookup_timeout_s: Time limit for reading a record.
        history_wait_s: For which a turn that needs its history asks again while the record cannot be read.
        commit_timeout_s: Time limit for writing a batch.
        cache_bytes: Of records in the cache.
        max_pending: Records that may wait to be written.
        copy_s: How long a session goes on from the copy in this leader while the store does not have it or is
            away.
    """

    lookup_timeout_s: float = 0.1
    history_wait_s: float = 0.0
    commit_timeout_s: float = 2.0
    cache_bytes: int = 64 * 2**20
    max_pending: int = 4096
    pending_bytes: int = 64 * 2**20
    copy_s: float = 21_600.0
