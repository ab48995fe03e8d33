"""Limits of sessions on which several services have to agree."""

from dataclasses import dataclass

from shared.setting_types import UpToTenMillion

TOMBSTONE_S = 86_400.0  # for which the KV state service remembers that a session was deleted
# For which a leader's copy of a session serves when the store lacks it or is away. A copy that is older than
# the tombstone would bring a deleted session back; a quarter leaves room for clocks and for running turns.
COPY_S = TOMBSTONE_S / 4


@dataclass(frozen=True, kw_only=True)
class PinLimit:
    """The settings of both services inherit the field, so it is also a setting `RYZ_<NAME>`."""

    router_pins_max: UpToTenMillion = 65_536
    """Pinned sessions of all tenants, which every router remembers; more are refused. Routers and the KV
    state service need the same value."""
