"""What the settings of the KV state service leave out, because no operator has a reason to change it.

Times are in seconds. `KVStateSettings` carries them, so that tests can run the service with others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from services.kvstate.blocks.tier import TierLimits
from shared.flow.circuit import CircuitLimits, store_limits
from shared.session_limits import TOMBSTONE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStateConstants:
    """The constants of the service."""

    circuit: CircuitLimits = field(default_factory=store_limits)
    """When a store counts as unavailable, and how often it is probed then."""
    check_s: float = 1.0
    """Interval of checks of an available store, for /ready."""
    max_pending: int = 4096
    """Calls of each kind that may wait; more are dropped. Their callers' time limits are shorter than such a
    queue."""
    tombstone_s: float = TOMBSTONE_S
    """How long a deleted session is remembered, so that an earlier turn does not store it again."""
    grace_s: float = 900.0
    """How long a session may hold KV blocks before its first record, and how long unreported bytes live:
    longer than a turn may take, by the usual time limits."""
    sweep_s: float = 1.0
    """Interval of sweeps over KV blocks; one replica at a time does it."""


def constant_settings() -> Mapping[str, object]:
    """Return the values of constants that were settings, by their variables."""
    constants = KVStateConstants()
    return MappingProxyType(
        {
            "RYZ_KVSTATE_MAX_PENDING": constants.max_pending,
            "RYZ_REDIS_CIRCUIT_FAILURES": constants.circuit.failures,
            "RYZ_REDIS_PROBE_S": constants.circuit.open_s,
            "RYZ_REDIS_CHECK_S": constants.check_s,
            "RYZ_SESSION_TOMBSTONE_S": constants.tombstone_s,
            "RYZ_KV_GRACE_S": constants.grace_s,
            "RYZ_KV_PAUSE_S": TierLimits().pause_ms / 1000,
            "RYZ_KV_SWEEP_S": constants.sweep_s,
        }
    )
