"""The time limits and bounds of an `InferenceClient`."""

from typing import Annotated

from annotated_types import Interval
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.setting_types import (
    From64KiB,
    UpToHundred,
    UpToMinute,
    UpToSecond,
    ZeroToHour,
    ZeroToMillion,
    ZeroToMinute,
)


class ClientSettings(BaseSettings):
    """Read from `RYZ_CLIENT_...`; the defaults suit a gateway as well as a batch job."""

    model_config = SettingsConfigDict(
        env_prefix="RYZ_CLIENT_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    accept_timeout_s: UpToMinute = 0.2
    """Wait for a group to accept a request before it is published again; doubles each time."""
    max_publishes: Annotated[int, Interval(ge=1, le=20)] = 5
    """How often it is published in a row before it counts as refused, and how often groups may hand back a
    request that none has begun."""
    wait_s: ZeroToHour = 15.0
    """How long a request that no group has begun waits for a broker, a router or a group that is away, before
    it is refused; 0: not at all. Its own time limit may be shorter."""
    max_waiting: ZeroToMillion = 512
    """Requests that may wait so at the same time; others are refused at once."""
    probe_interval_s: UpToMinute = 1.0
    """Silence of a stream after which its leader is asked about it."""
    resend_timeout_s: UpToMinute = 0.5
    """Time limit for a leader's resend."""
    resend_attempts: UpToHundred = 3
    """Resends in a row without progress after which the group counts as lost."""
    reconnect_grace_s: ZeroToMinute = 3.0
    """How long leaders may be silent after the connection to the broker was lost."""
    max_losses: Annotated[int, Interval(ge=0, le=100)] = 5
    """Groups that a request may lose in mid-stream, without those that turn out to be alive; 0: none."""
    retries_per_s: Annotated[float, Interval(gt=0, le=1e6)] = 200.0
    """Streams without a group that are published again per second, of all that wait for one."""
    max_buffered_frames: Annotated[int, Interval(ge=1)] = 1024
    """Unread frames of one request; beyond it the request is cancelled."""
    max_buffered_bytes: From64KiB = 96 * 2**20
    """Memory of one request's unread frames; beyond it the request is cancelled."""
    max_open_requests: Annotated[int, Interval(ge=1)] = 16_384
    """Requests that may run at the same time."""
    tick_s: UpToSecond = 0.01
    """Resolution of deadlines and timeouts."""
