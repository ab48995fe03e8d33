"""Errors as gRPC has them: status code, details and trailing metadata.

The status of an error of the family stands in the table of `shared/errors.py`; what only HTTP knows, such as
a missing key, follows from its status.
"""

from collections.abc import Mapping

import grpc

from services.gateway.admission.answer_headers import RATE_HEADERS
from services.gateway.admission.errors.refusals import ErrorAnswer, answer_for
from services.gateway.transports.grpc.serving.call_metadata import shown_metadata
from shared.errors import TABLE, Unavailable

_STATUS_OF_HTTP = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.ABORTED,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_STATUS_OF_NUMBER = {status.value[0]: status for status in grpc.StatusCode}
_LONGEST_DETAILS = 2048  # characters; they travel as a header
# a client with a retry policy waits so long, or with -1 does not retry:
# https://github.com/grpc/proposal/blob/master/A6-client-retries.md
_TOLD = (
    "x-ryz-reason", "x-request-id", "retry-after", "x-ryz-limits",
    *(name.decode() for name in RATE_HEADERS),
)  # fmt: skip
_PUSHBACK = "grpc-retry-pushback-ms"
CUT = Unavailable("the gateway ended the answer before it was complete; send the request again", reason="cut")


class GrpcFailure(Exception):
    """An error ready to be sent.

    Attributes:
        status: Of gRPC.
        message: What happened, and what to do.
        code: Of the error family, or of HTTP's refusals.
        fields: Headers of the HTTP answer that it was.
        ends_stream: No other request can be answered on the same stream.
    """

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        code: str,
        fields: Mapping[bytes, bytes],
        *,
        ends_stream: bool = False,
    ) -> None:
        super().__init__(message)
        self.ends_stream = ends_stream
        self.status = status
        self.message = message[:_LONGEST_DETAILS]
        self.code = code
        self.fields = fields

    @property
    def trailing(self) -> list[tuple[str, str]]:
        """Metadata at the end of the call."""
        found = [("x-ryz-code", self.code)]
        found += shown_metadata(self.fields, _TOLD)
        if self.retry_after_s:
            found.append((_PUSHBACK, str(round(self.retry_after_s * 1000))))
        elif self.fields.get(b"x-should-retry") == b"false":
            found.append((_PUSHBACK, "-1"))
        return found

    @property
    def retry_after_s(self) -> float:
        """Seconds after which a retry may succeed; 0: a retry does not help, or the time is unknown."""
        try:
            return float(self.fields.get(b"retry-after", b"0"))
        except ValueError:
            return 0.0

    @property
    def parameters(self) -> dict[str, str | float]:
        """The same as parameters of a response on a stream."""
        found: dict[str, str | float] = {
            "error_code": self.code,
            "grpc_status": self.status.name,
            "reason": self.fields.get(b"x-ryz-reason", b"").decode("latin-1") or self.code,
        }
        if self.retry_after_s:
            found["retry_after_s"] = self.retry_after_s
        return found


def interrupted() -> GrpcFailure:
    """The end of a stream whose gateway stops."""
    return failure_of(
        Unavailable("the gateway stops; open the stream anew", reason="draining", retry_after_s=1.0)
    )


def too_slow(limit_s: float) -> GrpcFailure:
    """The end of a stream whose client does not read."""
    return GrpcFailure(
        grpc.StatusCode.CANCELLED,
        f"the responses were not read for {limit_s:g} s (RYZ_WRITE_TIMEOUT_S)",
        "slow_reader",
        {},
        ends_stream=True,
    )


def unimplemented(message: str) -> GrpcFailure:
    """The answer to a method that is known and not served."""
    return GrpcFailure(grpc.StatusCode.UNIMPLEMENTED, message, "not_served", {})


def failure_of(error: Exception) -> GrpcFailure:
    """The failure for an exception; the text of an unexpected one is not told."""
    if isinstance(error, GrpcFailure):
        return error
    answer = answer_for(error)
    return GrpcFailure(_status(answer.code, answer.status), answer.message, answer.code, dict(answer.headers))


def failure_of_call(error: ErrorAnswer, headers: Mapping[bytes, bytes], *, begun: bool) -> GrpcFailure:
    """The failure for the error of a call.

    Args:
        error: Of the core.
        headers: Of the answer.
        begun: It came in the middle of the answer, whose headers were told before.
    """
    if begun:
        status = error.status if error.status == 401 else 500  # the key was revoked meanwhile
        return GrpcFailure(_status(error.code, status), error.message, error.code, {})
    return GrpcFailure(_status(error.code, error.status), error.message, error.code, headers)


def _status(code: str, http_status: int) -> grpc.StatusCode:
    row = TABLE.get(code)
    if row is not None:
        return _STATUS_OF_NUMBER[row.grpc_status]
    known = _STATUS_OF_HTTP.get(http_status)
    if known is not None:
        return known
    return grpc.StatusCode.INTERNAL if http_status >= 500 else grpc.StatusCode.INVALID_ARGUMENT
