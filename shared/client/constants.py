"""What the settings of a client leave out, because no operator has a reason to change it.

Times are in seconds. `ClientSettings` carries them, so that tests can run a client with others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConstants:
    """The constants of a client."""

    accept_timeout_s: float = 0.2
    """Wait for a group to accept a request before it is published again; doubles each time. Groups accept
    within milliseconds, before they do anything else."""
    max_publishes: int = 5
    """How often it is published in a row before it counts as refused, and how often groups may hand back a
    request that none has begun."""
    probe_interval_s: float = 1.0
    """Silence of a stream after which its leader is asked about it."""
    resend_timeout_s: float = 0.5
    """Time limit for a leader's resend."""
    resend_patience: int = 10
    """Time limits of a resend for which a leader that is silent counts as slow: on a busy machine it answers
    late, routers report a loss sooner, and the broker reports at once that a subject has no subscriber."""
    resend_attempts: int = 3
    """Resends in a row without progress after which the group counts as lost."""
    reconnect_grace_s: float = 3.0
    """How long leaders may be silent after the connection to the broker was lost; they connect again."""
    retries_per_s: float = 200.0
    """Streams without a group that are published again per second, of all that wait for one: a group that
    comes back is not flooded."""
    max_waiting_bytes: int = 64 * 2**20
    """Memory of the requests that wait, besides `max_waiting`; beyond it others are refused."""
    max_buffered_frames: int = 1024
    """Unread frames of one request; beyond it the request is cancelled."""
    max_buffered_bytes: int = 96 * 2**20
    """Memory of one request's unread frames; beyond it the request is cancelled."""
    max_open_requests: int = 16_384
    """Requests that may run at the same time: a bound against leaks of the caller. Gateways have a lower one
    of their own (`RYZ_MAX_CONCURRENT`)."""
    tick_s: float = 0.01
    """Resolution of deadlines and timeouts."""

    @property
    def patience_s(self) -> float:
        """How long a leader may be silent that only answers late."""
        return self.resend_patience * self.resend_timeout_s


def constant_settings() -> Mapping[str, object]:
    """Return the values of constants that were settings, by their variables."""
    constants = ClientConstants()
    return MappingProxyType(
        {f"RYZ_CLIENT_{name.upper()}": getattr(constants, name) for name in ClientConstants.__slots__}
    )
