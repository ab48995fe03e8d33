"""The number of pinned sessions, a setting of the KV state service and of routers."""

from dataclasses import dataclass

from shared.setting_types import UpToTenMillion


@dataclass(frozen=True, kw_only=True)
class PinLimit:
    """The settings of both services inherit the field, so it is also a setting `RYZ_<NAME>`."""

    router_pins_max: UpToTenMillion = 65_536
    """Pinned sessions of all tenants, which every router remembers; more are refused. Routers and the KV
    state service need the same value."""
