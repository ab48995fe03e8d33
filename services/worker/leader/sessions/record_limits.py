"""Bounds of the session records that a leader keeps."""

from dataclasses import dataclass

from shared.session_limits import COPY_S
from shared.setting_types import From64KiB


@dataclass(frozen=True, kw_only=True)
class RecordMemory:
    """The memory of records. `WorkerSettings` inherits the fields, so each is also a setting `RYZ_<NAME>`."""

    session_cache_bytes: From64KiB = 64 * 2**20
    """Bytes of records kept in the leader; beyond it the tenant with the most loses its oldest."""
    session_pending_bytes: From64KiB = 64 * 2**20
    """Bytes of records that may wait to be stored; beyond it the tenant with the most loses its oldest."""


@dataclass(frozen=True, kw_only=True)
class SessionRecordLimits(RecordMemory):
    """The settings, and constants: times in seconds.

    Attributes:
        lookup_timeout_s: For reading a record.
        history_wait_s: For which a turn that needs its history asks again while the record cannot be read,
            before it fails: a restart of the store takes some seconds.
        commit_timeout_s: For writing a batch of records. Nothing but `Done` waits for it, and that for less.
        max_pending: Records that may wait to be written. Their bytes are a setting; this bounds their number.
        copy_s: How long a session goes on from the copy in this leader while the store does not have it or is
            away.
    """

    lookup_timeout_s: float = 0.5
    history_wait_s: float = 10.0
    commit_timeout_s: float = 2.0
    max_pending: int = 4096
    copy_s: float = COPY_S
