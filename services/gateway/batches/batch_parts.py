"""What looking after batches and running their requests have in common."""

from dataclasses import dataclass

from services.gateway.batches.batch_log import BatchLog
from services.gateway.batches.batch_streams import BatchStreams
from services.gateway.files.tenant_files import FileShelf


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Limits of batches.

    Attributes:
        owner: The name of this gateway in leases.
        lease_s: How long a lease lasts.
        max_lines: Requests in one batch.
        line_bytes: The longest request.
        max_open: Batches of one tenant that have not ended.
        max_waiting: Requests in all of these.
        max_running: Requests that run here at a time.
        share: Of the groups' running places.
    """

    owner: str
    lease_s: float
    max_lines: int
    line_bytes: int
    max_open: int
    max_waiting: int
    max_running: int
    share: float


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts.

    Attributes:
        log: The records.
        streams: Requests that wait, and results.
        shelf: The files.
        rules: The limits.
    """

    log: BatchLog
    streams: BatchStreams
    shelf: FileShelf
    rules: BatchRules
