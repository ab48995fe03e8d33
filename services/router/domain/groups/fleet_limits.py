"""When a group is lost, and what a router assumes of it."""

from dataclasses import dataclass, field

from services.router.domain.groups.group import LoadLimits
from shared.flow.circuit import CircuitLimits
from shared.setting_types import ZeroToMinute


@dataclass(frozen=True, kw_only=True)
class SilenceSettings:
    """How long silence is waited for. `RouterSettings` inherits the field, so it is also a setting."""

    router_heartbeat_slack_s: ZeroToMinute = 0.175
    """Time on top of three missed heartbeats until a silent group counts as lost, for delays of the broker
    and of the router."""


@dataclass(frozen=True, kw_only=True)
class FleetLimits(SilenceSettings):
    """When a group is lost, when it is forgotten, and how many groups a router keeps.

    Attributes:
        missed_heartbeats: A group is lost after so many of its intervals and the slack; after twice that at
            most if no other group is heard either.
        patience: A bound on that time, as a factor, for groups whose heartbeats were irregular lately or came
            from a busy machine, and for those that load their model.
        forget_s: After its last heartbeat the group's model is forgotten.
        max_groups: Groups that are kept.
        half_life_s: Work so long ago counts half.
        hold_s: Heartbeats so soon after the broker's report that a leader is gone were sent before it, and
            are ignored.
        load: What to assume of a group's load.
        breaker: When a group's breaker trips.
    """

    missed_heartbeats: int = 3
    patience: float = 16.0
    forget_s: float = 300.0
    max_groups: int = 1024
    half_life_s: float = 60.0
    hold_s: float = 0.1
    load: LoadLimits = field(default_factory=LoadLimits)
    breaker: CircuitLimits = field(default_factory=CircuitLimits)
