"""Settings of the WebSocket on which many requests run at once."""

from typing import Annotated

from annotated_types import Interval
from pydantic import BaseModel

from shared.setting_types import UpToDay, UpToMillion, UpToMinute, ZeroToHour


class RealtimeSettings(BaseModel, use_attribute_docstrings=True):
    """Its limits."""

    realtime_sockets_max: UpToMillion = 1024
    """Open WebSockets of `/v1/realtime`."""
    realtime_requests_max: Annotated[int, Interval(ge=1, le=1024)] = 32
    """Requests that may run on one of them at the same time."""
    realtime_idle_s: UpToDay = 600.0
    """How long one may be open without a request and without a message."""
    realtime_auth_s: UpToMinute = 5.0
    """How long a client that gave no key when it connected may take to send it."""
    realtime_grace_s: ZeroToHour = 10.0
    """How long a stream goes on after its connection was lost, to be resumed; `X-Stream-Grace` of the request
    comes before it, and `RYZ_STREAM_MAX_GRACE_S` bounds it. 0: not at all."""
