"""The settings of the router."""

from typing import Annotated

from annotated_types import Interval

from services.router.domain.fleet_limits import FleetLimits
from services.router.domain.group import LoadLimits
from services.router.domain.policies import HybridLimits, PolicyName
from services.router.domain.policies.costs import Costs
from shared.flow.circuit import CircuitLimits
from shared.setting_types import (
    PerSecond,
    UpToDay,
    UpToHour,
    UpToHundred,
    UpToMillion,
    UpToMinute,
    UpToSecond,
    UpToTenMillion,
    UpToTenMinutes,
    UpToTenSeconds,
    ZeroToHour,
    ZeroToMillion,
    ZeroToMinute,
    ZeroToTenSeconds,
)
from shared.settings import CommonSettings, PinLimitSettings


class RouterSettings(CommonSettings, PinLimitSettings):
    """The variables are called `RYZ_` and the field's name."""

    router_policy: PolicyName = "hybrid"
    """How a group is chosen."""
    router_threshold: UpToMillion = 2
    """Waiting requests from which `hybrid` looks at other groups."""
    router_threshold_s: ZeroToMinute = 0.02
    """Seconds until a prompt is begun, from which `hybrid` looks at other groups."""
    router_lead_s: ZeroToHour = 0.1
    """Seconds of work above its share, from which `hybrid` looks beyond a busy group."""
    router_lead_price: Annotated[float, Interval(ge=0, le=100)] = 0.2
    """Weight of a second of such work against a second of waiting; 0: work need not be even."""
    router_max_inflight: UpToMillion = 4096
    """Requests that one group may hold, whatever its heartbeats say."""
    router_assumed_service_s: UpToHour = 0.5
    """Assumed duration of a request, until a group's rate is known."""
    router_assumed_tokens_per_s: Annotated[float, Interval(gt=0, le=1e9)] = 500.0
    """Assumed rate of computing, until a group has measured it."""
    router_assumed_fetch_tokens_per_s: Annotated[float, Interval(gt=0, le=1e9)] = 20_000.0
    """Assumed rate of fetching KV, until a group has measured it."""
    router_assumed_fetch_s: ZeroToMinute = 0.01
    """Assumed fixed time of a fetch, until a group has measured it."""
    router_missed_heartbeats: Annotated[int, Interval(ge=1, le=1000)] = 3
    """Missed heartbeats after which a group counts as lost."""
    router_heartbeat_slack_s: ZeroToMinute = 0.175
    """Time on top of them, for delays of the broker and of the router."""
    router_heartbeat_patience: Annotated[float, Interval(ge=1, le=100)] = 16.0
    """Longest wait as a multiple of that time: for a group that loads its model, whose recent heartbeats were
    irregular, or whose machine is busy."""
    router_disconnect_hold_s: ZeroToTenSeconds = 0.1
    """How long heartbeats are ignored after the broker reported that their leader's connection ended."""
    router_reconnect_s: ZeroToMinute = 1.5
    """How long groups may take to come back after the broker was away, before silence counts."""
    router_forget_s: Annotated[float, Interval(ge=1, le=86_400)] = 300.0
    """How long the model of a silent group stays known."""
    router_max_groups: Annotated[int, Interval(ge=1, le=100_000)] = 1024
    """Groups that a router remembers."""
    router_warmup_s: ZeroToMinute = 0.25
    """How long a new router listens before it answers."""
    router_tick_s: UpToSecond = 0.025
    """Interval of the search for silent groups."""
    router_duplicates_s: UpToHour = 30.0
    """How long a request's group is remembered, for copies of the request."""
    router_duplicates_max: UpToTenMillion = 65_536
    """Requests whose group is remembered."""
    router_forward_s: UpToMinute = 2.0
    """How long a request is kept until a group takes it."""
    router_forward_max_bytes: Annotated[int, Interval(ge=1024)] = 64 * 1024 * 1024
    """Bytes of requests that are kept so."""
    router_max_forwards: UpToHundred = 3
    """Groups to which a request is sent in turn until one takes it."""
    router_sessions_max: UpToTenMillion = 65_536
    """Entries about sessions; each session has up to two."""
    router_sessions_s: Annotated[float, Interval(gt=0, le=604_800)] = 3600.0
    """How long a session without a turn is remembered."""
    router_pins_refresh_s: Annotated[float, Interval(ge=0.1, le=3600)] = 30.0
    """Interval at which a router asks for all pins."""
    router_lookup_timeout_s: UpToTenSeconds = 0.1
    """How long `state_server` waits to learn where a session was last served."""
    router_max_pending: UpToMillion = 65_536
    """Requests that may wait in a router; more are dropped."""
    router_outside_rps: PerSecond = 500.0
    """Requests per second from each bus user outside; one with n choices counts n times, and once more for
    every 16 KiB. 0: no limit."""
    router_outside_calls_s: ZeroToMillion = 4000
    """Messages per second from all bus users outside together; the broker drops the others. 0: no limit."""
    router_bus_users: str = ""
    """The file in which `ryz bus-users` keeps users and their own limits; empty: all have the same."""
    router_outside_max_priority: Annotated[int, Interval(ge=-10, le=10)] = 0
    """Highest priority of a request of a bus user outside."""
    router_contested_places_s: PerSecond = 50.0
    """Requests per second of each of several tenants that go to a group although all are full; its leader
    decides which tenant gives way. 0: none."""
    router_breaker_failures: Annotated[int, Interval(ge=1, le=1000)] = 3
    """Losses of a group, or broken generations if most were, within the window that open its breaker."""
    router_breaker_window_s: UpToHour = 10.0
    """Length of that window."""
    router_breaker_open_s: UpToTenMinutes = 0.5
    """How long a breaker stays open at first; it doubles up to 10 s."""
    router_balance_half_life_s: UpToDay = 60.0
    """Half-life of a group's share of the work."""

    def fleet_limits(self) -> FleetLimits:
        """Return the limits of the fleet."""
        return FleetLimits(
            missed_heartbeats=self.router_missed_heartbeats,
            slack_s=self.router_heartbeat_slack_s,
            patience=self.router_heartbeat_patience,
            forget_s=self.router_forget_s,
            max_groups=self.router_max_groups,
            half_life_s=self.router_balance_half_life_s,
            hold_s=self.router_disconnect_hold_s,
            load=LoadLimits(
                self.router_max_inflight, self.router_assumed_service_s, self.router_assumed_tokens_per_s
            ),
            breaker=CircuitLimits(
                self.router_breaker_failures, self.router_breaker_window_s, self.router_breaker_open_s
            ),
        )

    def hybrid_limits(self) -> HybridLimits:
        """Return the limits from which `hybrid` compares costs."""
        return HybridLimits(self.router_threshold, self.router_threshold_s, self.router_lead_s)

    def costs(self) -> Costs:
        """Return the assumed costs."""
        return Costs(
            self.router_assumed_tokens_per_s,
            self.router_assumed_fetch_tokens_per_s,
            self.router_assumed_fetch_s,
            self.router_lead_price,
        )
