"""The settings of the router."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from annotated_types import Interval

from services.router.constants import RouterConstants, constant_settings
from services.router.domain.groups.fleet_limits import FleetLimits, SilenceSettings
from services.router.domain.policies import HybridLimits, PolicyName
from shared.session_limits import PinLimit
from shared.setting_types import PerSecond, ZeroToMillion
from shared.settings import CommonSettings


# mypy does not see that pydantic freezes settings by their config
class RouterSettings(CommonSettings, PinLimit, HybridLimits, SilenceSettings):  # type: ignore[misc]
    """The variables are called `RYZ_` and the field's name."""

    gone: ClassVar[Mapping[str, object]] = constant_settings()
    constants: ClassVar[RouterConstants] = RouterConstants()

    router_policy: PolicyName = "hybrid"
    """How a group is chosen."""
    router_outside_rps: PerSecond = 500.0
    """Requests per second from each bus user outside; one with n choices counts n times, and once more for
    every 16 KiB. 0: no limit."""
    router_outside_calls_s: ZeroToMillion = 4000
    """Messages per second from all bus users outside together; the broker drops the others. 0: no limit."""
    router_outside_max_priority: Annotated[int, Interval(ge=-10, le=10)] = 0
    """Highest priority of a request of a bus user outside."""

    def fleet_limits(self) -> FleetLimits:
        """Return the limits of the fleet."""
        return replace(self.constants.fleet, router_heartbeat_slack_s=self.router_heartbeat_slack_s)
