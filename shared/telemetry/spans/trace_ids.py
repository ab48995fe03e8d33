"""Ids of traces and spans, and the `traceparent` header that carries them (W3C Trace Context, level 1)."""

import hashlib
import random
import re
from typing import NamedTuple, Self

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The span that a message comes from.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        sampled: The trace is recorded.
    """

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def read(cls, header: str) -> Self | None:
        """Returns what a header says; None if there is none or it is not valid."""
        found = _HEADER.fullmatch(header)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @property
    def header(self) -> str:
        """The value of the header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def trace_id_of_request(request_id: str) -> str:
    """The id of the trace of a request that comes without one.

    It depends on the request's id alone, so every gateway at which a client goes on with a stream continues
    the same trace, and decides in the same way whether it is recorded.
    """
    return hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()


def new_span_id() -> str:
    """A random id."""
    return f"{random.getrandbits(64) or 1:016x}"


def is_in_share(trace_id: str, ratio: float) -> bool:
    """Whether a trace is in the share that is recorded: the rule of OpenTelemetry's `TraceIdRatioBased`."""
    return int(trace_id[16:], 16) < ratio * (1 << 64)
