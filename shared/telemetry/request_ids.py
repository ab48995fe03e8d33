"""The request that the running task works for, so that log lines and further calls can name it.

One context variable: to bind a request costs a third of a microsecond, and tasks that are started inside the
block inherit it. Code that handles several requests in one task names the request of a line itself
(`log_ids`).
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any

import msgspec

TRACE_PARENT = "traceparent"
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


class RequestIds(msgspec.Struct, frozen=True, gc=False):
    """The ids of one request.

    Attributes:
        request_id: The id of the request as it travels.
        traceparent: The trace context of W3C as a header has it; empty: there is no trace.
    """

    request_id: str
    traceparent: str = ""

    @property
    def trace_id(self) -> str:
        """The id of the trace; empty without one."""
        return trace_id_of(self.traceparent)


_CURRENT: ContextVar[RequestIds | None] = ContextVar("ryz_request", default=None)


class BoundRequest:
    """A block of code that works for one request."""

    __slots__ = ("_ids", "_token")

    def __init__(self, ids: RequestIds) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token: Token[RequestIds | None] = _CURRENT.set(self._ids)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def bind_request(request_id: str, traceparent: str = "") -> BoundRequest:
    """Names the request that the block works for, for its log lines and the tasks that it starts."""
    return BoundRequest(RequestIds(request_id, traceparent))


def current_request() -> RequestIds | None:
    """Returns the request that the running task works for, or None."""
    return _CURRENT.get()


def log_ids(request_id: str, headers: Mapping[str, str] | str = "") -> dict[str, str]:
    """Returns the fields that name a request in a log line.

    Args:
        headers: Its headers, or its `traceparent`.
    """
    parent = headers if isinstance(headers, str) else headers.get(TRACE_PARENT, "")
    trace = trace_id_of(parent)
    return {"request_id": request_id, "trace_id": trace} if trace else {"request_id": request_id}


def trace_id_of(traceparent: str) -> str:
    """Returns the trace id in a `traceparent`; empty if there is none."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 and _TRACE_ID.fullmatch(parts[1]) else ""


def add_request(_: Any, __: str, event: Any) -> Any:
    """Adds the ids of the current request to a log line; fields that the line has stay."""
    ids = _CURRENT.get()
    if ids is not None and ids.request_id:
        event.setdefault("request_id", ids.request_id)
        if ids.traceparent and (trace := ids.trace_id):
            event.setdefault("trace_id", trace)
    return event
