"""The patience and the bounds of an `InferenceClient`."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ClientSettings(BaseSettings):
    """Read from `RYZ_CLIENT_...`; the defaults suit a gateway as well as a batch job."""

    model_config = SettingsConfigDict(env_prefix="RYZ_CLIENT_", frozen=True, extra="ignore")

    accept_timeout_s: float = Field(
        default=0.2, gt=0, le=60, description="Published again when no group took it; doubles each time."
    )
    max_publishes: int = Field(
        default=5, ge=1, le=20, description="How often a request is published at most."
    )
    probe_interval_s: float = Field(
        default=1.0, gt=0, le=60, description="A stream that was silent for so long is asked after."
    )
    resend_timeout_s: float = Field(
        default=0.5, gt=0, le=60, description="How long a leader may take to resend."
    )
    resend_attempts: int = Field(
        default=3, ge=1, le=100, description="So many resends in a row without progress lose the group."
    )
    reconnect_grace_s: float = Field(
        default=3.0, ge=0, le=60, description="After a lost broker, how long silent leaders are excused."
    )
    max_losses: int = Field(
        default=5, ge=0, le=100, description="Groups that a request may lose in mid-stream; 0: none."
    )
    retries_per_s: float = Field(
        default=200.0,
        gt=0,
        le=1e6,
        description="Streams without a group that are offered again in a second, of all that wait for one.",
    )
    max_buffered_frames: int = Field(
        default=1024, ge=1, description="Frames that wait for a slow reader before its request is cancelled."
    )
    max_buffered_bytes: int = Field(
        default=96 * 2**20,
        ge=2**16,
        le=2**40,
        description="Memory that one request's unread frames may take; beyond it the request is cancelled.",
    )
    max_open_requests: int = Field(default=16_384, ge=1, description="Requests at the same time.")
    tick_s: float = Field(
        default=0.01, gt=0, le=1, description="How exactly deadlines and timeouts are kept."
    )
