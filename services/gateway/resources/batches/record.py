"""The record of a batch: its states, the gateway that owns it, and the forms that callers see. Pure.

A record is written whole, under the condition that nothing changed it meanwhile. Once it has ended it changes
no more, but for `cleaned`. The lines of output and error files are those of OpenAI's batches.
"""

import hashlib
import os
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from shared.messages import Scopes

State = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Ending = Literal["completed", "expired", "cancelled"]
ENDED = frozenset({"failed", "completed", "expired", "cancelled"})
COMPLETED, FAILED = "completed", "failed"


class BatchFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong with the input file.

    Attributes:
        code: For programs.
        message: For people.
        line: The line, from 1; 0: the whole file.
        param: The field; empty: none.
    """

    code: str
    message: str
    line: int = 0
    param: str = ""


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch.

    Attributes:
        key_id: The stored key that it was asked for with; empty: there was none.
        scopes: What that one, or a token, may be used for; a key that is there has its own.
        endpoint: The route of all its requests.
        created_s: Times are in seconds since 1970; 0: not yet.
        expires_s: When its time is over.
        ending: What it becomes after `finalizing` and `cancelling`.
        total: Its requests; 0 while they are not counted.
        owner: The gateway that looks after it; empty: none.
        lease_until_s: Until when it does.
        term: How often a gateway has taken it; the files of a term are written by one gateway only.
        cleaned: Nothing of it is left in the streams but this.
        erased: It is treated as if it had never been; the record stays so that all gateways forget it.
    """

    batch_id: str
    tenant: str
    key_id: str = ""
    scopes: Scopes = Scopes()
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: int
    expires_s: int
    metadata: dict[str, str] = {}
    output_expires_s: int = 0
    state: State = "validating"
    ending: Ending = "completed"
    paused: bool = False
    model: str = ""
    times: dict[str, int] = {}
    total: int = 0
    completed: int = 0
    failed: int = 0
    faults: list[BatchFault] = []
    output_file_id: str = ""
    error_file_id: str = ""
    owner: str = ""
    lease_until_s: float = 0.0
    term: int = 0
    cleaned: bool = False
    erased: bool = False

    @property
    def ended(self) -> bool:
        """It changes no more."""
        return self.state in ENDED

    @property
    def last_s(self) -> int:
        """When it came into its state."""
        return max(self.times.values(), default=0)

    @property
    def waiting(self) -> int:
        """Requests without a result."""
        return 0 if self.ended else max(0, self.total - self.completed - self.failed)

    @property
    def runs(self) -> bool:
        """Its requests may be taken now."""
        return self.state == "in_progress" and not self.paused

    def to(self, state: State, now_s: float, **more: Any) -> "BatchRecord":
        """The record in another state."""
        return replace(self, state=state, times=self.times | {state: int(now_s)}, **more)

    def file_ids(self, term: int) -> tuple[str, str]:
        """The ids of the output file and the error file that the gateway of a term writes."""
        made = (
            hashlib.blake2b(f"{self.batch_id}:{term}:{what}".encode(), digest_size=12).hexdigest()
            for what in ("output", "errors")
        )
        output, errors = made
        return f"file-{output}", f"file-{errors}"

    def request_name(self, number: int) -> str:
        """The id of one of its requests, the same however often it runs."""
        made = hashlib.blake2b(f"{self.batch_id}:{number}".encode(), digest_size=12).hexdigest()
        return f"batch_req_{made}"

    def as_openai(self) -> dict[str, Any]:
        """The batch object of OpenAI's API, with `paused` beside it."""
        faults = [
            {
                "code": fault.code,
                "message": fault.message,
                "line": fault.line or None,
                "param": fault.param or None,
            }
            for fault in self.faults
        ]
        return {
            "id": self.batch_id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": {"object": "list", "data": faults} if faults else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.state,
            "paused": self.paused,
            "output_file_id": self.output_file_id or None,
            "error_file_id": self.error_file_id or None,
            "created_at": self.created_s,
            "in_progress_at": self.times.get("in_progress"),
            "expires_at": self.expires_s,
            "finalizing_at": self.times.get("finalizing"),
            "completed_at": self.times.get("completed"),
            "failed_at": self.times.get("failed"),
            "expired_at": self.times.get("expired"),
            "cancelling_at": self.times.get("cancelling"),
            "cancelled_at": self.times.get("cancelled"),
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata or None,
        }


def new_batch_id() -> str:
    """A new id: 96 random bits."""
    return f"batch_{os.urandom(12).hex()}"


def cancelled(record: BatchRecord, now_s: float) -> BatchRecord:
    """The record after its owner's wish to end it; one that has ended, or ends, stays as it is."""
    if record.state not in {"validating", "in_progress"}:
        return record
    return record.to("cancelling", now_s, ending="cancelled")


def paused(record: BatchRecord, *, on: bool) -> BatchRecord:
    """The record with its requests held back, or not any more."""
    return record if record.ended or record.paused == on else replace(record, paused=on)


def erased(record: BatchRecord) -> BatchRecord:
    """What stays of a batch of a tenant that is erased: its id, until records of its age go."""
    return BatchRecord(
        batch_id=record.batch_id,
        tenant=record.tenant,
        endpoint="",
        input_file_id="",
        completion_window="",
        created_s=0,
        expires_s=0,
        state=record.state,
        cleaned=True,
        erased=True,
    )


def claimed(record: BatchRecord, owner: str, now_s: float, lease_s: float) -> BatchRecord | None:
    """The record in the hands of a gateway; None: another one has it, or there is nothing to do."""
    if record.cleaned or (record.owner not in {"", owner} and record.lease_until_s > now_s):
        return None
    return replace(record, owner=owner, lease_until_s=now_s + lease_s, term=record.term + 1)


def answered(
    record: BatchRecord, number: int, custom_id: str, status: int, answer: bytes, *, ignored: str = ""
) -> bytes:
    """The line for a request that was answered, whatever the status.

    Args:
        record: Of the batch.
        number: Of the request in it.
        custom_id: The caller's name of the request.
        status: Of HTTP.
        answer: The body.
        ignored: What was left out of the request; empty: nothing.
    """
    name = record.request_name(number)
    response: dict[str, Any] = {"status_code": status, "request_id": name, "body": _body(answer)}
    if ignored:
        response["ignored"] = ignored
    return _line(name, custom_id, response, None)


def not_answered(record: BatchRecord, number: int, custom_id: str, code: str, message: str) -> bytes:
    """The line for a request that has no answer."""
    return _line(record.request_name(number), custom_id, None, {"code": code, "message": message})


def _body(answer: bytes) -> Any:
    try:
        msgspec.json.decode(answer, type=msgspec.Raw)
    except msgspec.DecodeError:
        return answer.decode("utf-8", "replace")
    return msgspec.Raw(answer)


def _line(name: str, custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"
