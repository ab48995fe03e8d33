"""Files and batches for services on the bus, with the same rules as `/v1/files` and `/v1/batches`.

A file larger than a message is sent as several files, which `FileJoin` makes one. Callers of services of ours
name the tenant; that of a caller outside is the one of its subject.
"""

from typing import Annotated, Literal

import msgspec

from shared.messages.base import DEFAULT_TENANT, Tenant, Wire

MAX_JOINED = 1024
MAX_LISTED = 100
FileId = Annotated[str, msgspec.Meta(pattern=r"^file-[A-Za-z0-9]{1,59}\Z", description="Of a file.")]
BatchId = Annotated[str, msgspec.Meta(pattern=r"^batch_[A-Za-z0-9]{1,58}\Z", description="Of a batch.")]
IdOrNone = Annotated[str, msgspec.Meta(max_length=64)]
FileName = Annotated[str, msgspec.Meta(max_length=255)]
Purpose = Annotated[str, msgspec.Meta(max_length=64, description="As in OpenAI's API: `batch` for batches.")]


class FileFacts(Wire, frozen=True, kw_only=True):
    """What is known of a file; times are in seconds since 1970, 0: never."""

    file_id: FileId
    filename: FileName
    purpose: Purpose
    num_bytes: int
    created_s: int
    expires_s: int = 0


class FilePut(Wire, frozen=True, kw_only=True):
    """Stores a file that fits into a message; answered by `FilesFound` with it."""

    data: bytes
    filename: FileName = "file"
    purpose: Purpose = "batch"
    tenant: Tenant = DEFAULT_TENANT


class FileJoin(Wire, frozen=True, kw_only=True):
    """Makes one file of several, in this order, and deletes them; answered by `FilesFound` with it."""

    file_ids: Annotated[list[FileId], msgspec.Meta(min_length=1, max_length=MAX_JOINED)]
    filename: FileName = "file"
    purpose: Purpose = "batch"
    tenant: Tenant = DEFAULT_TENANT


class FileRead(Wire, frozen=True, kw_only=True):
    """Asks for bytes of a file; answered by `FileBytes`."""

    file_id: FileId
    start: Annotated[int, msgspec.Meta(ge=0)] = 0
    tenant: Tenant = DEFAULT_TENANT


class FileBytes(Wire, frozen=True, kw_only=True):
    """Bytes of a file, from `start` on, as many as fit into a message.

    Attributes:
        file: The whole file's facts.
        data: Empty: the file ends there.
    """

    file: FileFacts
    data: bytes = b""


class FileQuery(Wire, frozen=True, kw_only=True):
    """Asks for a file, for all of a tenant, or has one deleted; answered by `FilesFound`.

    Attributes:
        file_id: With `get` and `delete`; with `list`: the last one that is known.
        purpose: With `list`: only these.
    """

    action: Literal["get", "list", "delete"] = "get"
    file_id: IdOrNone = ""
    purpose: Annotated[str, msgspec.Meta(max_length=64)] = ""
    tenant: Tenant = DEFAULT_TENANT


class FilesFound(Wire, frozen=True, kw_only=True):
    """Files, oldest first; with `more` there are others after the last one."""

    files: list[FileFacts] = []
    more: bool = False


class BatchProblem(Wire, frozen=True, kw_only=True):
    """What is wrong with an input file; `line` counts from 1, 0: the whole file."""

    code: str
    message: str
    line: int = 0


class BatchFacts(Wire, frozen=True, kw_only=True):
    """A batch.

    Attributes:
        state: As in OpenAI's API.
        paused: Its requests are held back.
        total: Its requests; 0 while they are not counted.
        times: When it came into each state, in seconds since 1970.
        output_file_id: Its results, when it has ended; empty: there are none.
        error_file_id: Requests that failed.
    """

    batch_id: BatchId
    endpoint: str
    input_file_id: FileId
    state: str
    created_s: int
    expires_s: int
    paused: bool = False
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: IdOrNone = ""
    error_file_id: IdOrNone = ""
    times: dict[str, int] = {}
    metadata: dict[str, str] = {}
    problems: list[BatchProblem] = []


class BatchCreate(Wire, frozen=True, kw_only=True):
    """Makes a batch of a file; answered by `BatchesFound` with it."""

    input_file_id: FileId
    endpoint: str = "/v1/chat/completions"
    completion_window: Annotated[
        str, msgspec.Meta(max_length=16, description="A number and s, m, h or d, at most 30d.")
    ] = "24h"
    metadata: Annotated[dict[str, str], msgspec.Meta(max_length=16)] = {}
    tenant: Tenant = DEFAULT_TENANT


class BatchQuery(Wire, frozen=True, kw_only=True):
    """Asks for a batch or for all of a tenant, or changes one; answered by `BatchesFound`.

    Attributes:
        batch_id: With `list`: the last one that is known.
    """

    action: Literal["get", "list", "cancel", "pause", "resume"] = "get"
    batch_id: IdOrNone = ""
    tenant: Tenant = DEFAULT_TENANT


class BatchesFound(Wire, frozen=True, kw_only=True):
    """Batches, oldest first; with `more` there are others after the last one."""

    batches: list[BatchFacts] = []
    more: bool = False
