"""The closed family of errors that services report to each other and to callers.

Each has a code (on the wire and in HTTP bodies), a message for people that says what happened and what to do,
and data for programs. One table maps codes to the statuses of HTTP and gRPC and to OpenAI's error type. Any
other exception is a bug: it is logged with its trace and reported as `internal`, without its text.
"""

from dataclasses import dataclass
from typing import Any

DISK_FULL = "disk_full"  # the `reason` of a store that cannot write


class RyzError(Exception):
    """Base of the family. `data` has plain values only; `param` in it names the field at fault."""

    code = "internal"

    def __init__(self, message: str, /, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {key: value for key, value in data.items() if value is not None}

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry may succeed; None: a retry does not help, or the time is unknown."""
        value = self.data.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class InvalidRequest(RyzError):
    """The caller's input is wrong; `param` names the field."""

    code = "invalid_request"


class ContextLengthExceeded(RyzError):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class ModelNotFound(RyzError):
    """No group serves that model."""

    code = "model_not_found"


class SessionNotFound(RyzError):
    """No such session, or it belongs to another tenant."""

    code = "session_not_found"


class ResponseNotFound(RyzError):
    """No such response, or it belongs to another tenant."""

    code = "response_not_found"


class FileNotFound(RyzError):
    """No such file, or it belongs to another tenant."""

    code = "file_not_found"


class BatchNotFound(RyzError):
    """No such batch, or it belongs to another tenant."""

    code = "batch_not_found"


class AccountNotFound(RyzError):
    """No such tenant, key or price."""

    code = "account_not_found"


class Conflict(RyzError):
    """The name is taken, or the object has changed meanwhile."""

    code = "conflict"


class RequestTooLarge(RyzError):
    """The body or the message is over the limit."""

    code = "request_too_large"


class RateLimited(RyzError):
    """The tenant is over its limit; `retry_after_s`."""

    code = "rate_limited"


class QuotaUsedUp(RyzError):
    """The tenant or key has spent its money; `retry_after_s` says when it has new."""

    code = "insufficient_quota"


class Overloaded(RyzError):
    """Every queue is full; `retry_after_s`."""

    code = "overloaded"


class Unavailable(RyzError):
    """Something is missing or draining: a router, a ready group, the broker, a store; `reason` says what."""

    code = "unavailable"


class GroupLost(RyzError):
    """The group that ran the request died and it could not be resumed."""

    code = "group_lost"


class Poison(RyzError):
    """Engines died while they computed the request; it is not offered to a third group."""

    code = "poison"


class DeadlineExceeded(RyzError):
    """The deadline of the request has passed."""

    code = "deadline_exceeded"


class Cancelled(RyzError):
    """The caller cancelled."""

    code = "cancelled"


class Internal(RyzError):
    """A bug of ours; the log has the trace."""

    code = "internal"


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """What a code is in each API.

    Attributes:
        openai_type: The `type` of OpenAI's error object.
        grpc_status: The status code of gRPC (https://grpc.io/docs/guides/status-codes/).
    """

    http_status: int
    openai_type: str
    grpc_status: int


FAMILY: dict[str, type[RyzError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        ContextLengthExceeded,
        ModelNotFound,
        SessionNotFound,
        ResponseNotFound,
        FileNotFound,
        BatchNotFound,
        AccountNotFound,
        Conflict,
        RequestTooLarge,
        RateLimited,
        QuotaUsedUp,
        Overloaded,
        Unavailable,
        GroupLost,
        Poison,
        DeadlineExceeded,
        Cancelled,
        Internal,
    )
}

TABLE: dict[str, ErrorMapping] = {
    "invalid_request": ErrorMapping(400, "invalid_request_error", 3),
    "context_length_exceeded": ErrorMapping(400, "invalid_request_error", 3),
    "model_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "session_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "response_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "file_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "batch_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "account_not_found": ErrorMapping(404, "invalid_request_error", 5),
    "conflict": ErrorMapping(409, "invalid_request_error", 10),
    "request_too_large": ErrorMapping(413, "invalid_request_error", 8),
    # clients and proxies would send it again after a 5xx, and two more engines would die
    "poison": ErrorMapping(422, "server_error", 9),
    "rate_limited": ErrorMapping(429, "rate_limit_error", 8),
    # OpenAI's clients know a used-up budget by this code, under the same status
    "insufficient_quota": ErrorMapping(429, "insufficient_quota", 8),
    "cancelled": ErrorMapping(499, "request_cancelled", 1),
    "internal": ErrorMapping(500, "server_error", 13),
    "overloaded": ErrorMapping(503, "server_error", 14),
    "unavailable": ErrorMapping(503, "server_error", 14),
    "group_lost": ErrorMapping(503, "server_error", 14),
    "deadline_exceeded": ErrorMapping(504, "server_error", 4),
}


def from_code(code: str, message: str, data: dict[str, Any] | None = None) -> RyzError:
    """Returns the error of a code; an unknown code (of a newer peer) becomes `Internal`."""
    return FAMILY.get(code, Internal)(message, **(data or {}))
