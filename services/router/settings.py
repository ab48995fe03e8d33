"""The settings of the router."""

from pydantic import Field

from services.router.domain.breaker import BreakerLimits
from services.router.domain.fleet import FleetLimits
from services.router.domain.group import LoadLimits
from services.router.domain.policies import HybridLimits, PolicyName
from services.router.domain.policies.costs import Costs
from shared.settings import CommonSettings


class RouterSettings(CommonSettings):
    """See the fields; the variables are called `RYZ_` and the field's name."""

    router_policy: PolicyName = Field(default="hybrid", description="How a group is chosen.")
    router_threshold: int = Field(
        default=2, ge=1, le=1_000_000, description="Waiting requests from which on `hybrid` looks elsewhere."
    )
    router_threshold_s: float = Field(
        default=0.02,
        ge=0,
        le=60,
        description="Seconds until a prompt is begun with, from which on `hybrid` looks elsewhere.",
    )
    router_lead_s: float = Field(
        default=0.1,
        ge=0,
        le=3600,
        description="Seconds of work beyond its share, from which on `hybrid` looks beyond a busy group.",
    )
    router_lead_price: float = Field(
        default=0.2,
        ge=0,
        le=100,
        description="What a second of such work counts beside a second of waiting; 0: work need not be even.",
    )
    router_max_inflight: int = Field(
        default=4096, ge=1, le=1_000_000, description="Requests that one group may hold, whatever it says."
    )
    router_assumed_service_s: float = Field(
        default=0.5, gt=0, le=3600, description="Seconds a request takes, until a group has shown its rate."
    )
    router_assumed_tokens_per_s: float = Field(
        default=500.0, gt=0, le=1e9, description="Tokens a second, until a group has shown its rate."
    )
    router_assumed_fetch_tokens_per_s: float = Field(
        default=20_000.0, gt=0, le=1e9, description="Tokens fetched a second, until a group has measured it."
    )
    router_assumed_fetch_s: float = Field(
        default=0.01, ge=0, le=60, description="Seconds that a fetch takes besides, until then."
    )
    router_missed_heartbeats: int = Field(
        default=3, ge=1, le=1000, description="Heartbeats without which a group counts as lost."
    )
    router_heartbeat_slack_s: float = Field(
        default=0.175,
        ge=0,
        le=60,
        description="Time on top of them, for delays of the broker and of ourselves.",
    )
    router_heartbeat_patience: float = Field(
        default=1.2,
        ge=1,
        le=100,
        description="A group whose heartbeats came irregularly lately has up to so many times that time.",
    )
    router_disconnect_hold_s: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="Heartbeats so soon after the broker's word that a leader is gone do not count.",
    )
    router_reconnect_s: float = Field(
        default=1.5,
        ge=0,
        le=60,
        description="How long groups may take to come back to a broker that was away, before silence counts.",
    )
    router_forget_s: float = Field(
        default=300.0, ge=1, le=86_400, description="Seconds that the model of a silent group stays known."
    )
    router_max_groups: int = Field(
        default=1024, ge=1, le=100_000, description="Groups that a router keeps in mind."
    )
    router_warmup_s: float = Field(
        default=0.25,
        ge=0,
        le=60,
        description="How long a new router listens before it answers; two heartbeats.",
    )
    router_tick_s: float = Field(
        default=0.025, gt=0, le=1, description="How often a router looks for silent groups."
    )
    router_duplicates_s: float = Field(
        default=30.0, gt=0, le=3600, description="How long the group of a request is remembered, for copies."
    )
    router_duplicates_max: int = Field(
        default=65_536, ge=1, le=10_000_000, description="Requests whose group is remembered."
    )
    router_forward_s: float = Field(
        default=2.0, gt=0, le=60, description="How long a request is kept in case nobody takes it."
    )
    router_forward_max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1024, description="Memory for requests that are kept so."
    )
    router_max_forwards: int = Field(
        default=3, ge=1, le=100, description="Groups that a request is offered to when nobody takes it."
    )
    router_sessions_max: int = Field(
        default=65_536, ge=1, le=10_000_000, description="Entries for sessions; each has up to two."
    )
    router_sessions_s: float = Field(
        default=3600.0, gt=0, le=604_800, description="How long a session without a turn is remembered."
    )
    router_pins_max: int = Field(
        default=65_536,
        ge=1,
        le=10_000_000,
        description="Pinned sessions of all tenants: a router keeps so many in mind, and more are refused. "
        "The same for routers and the KV state service.",
    )
    router_pins_refresh_s: float = Field(
        default=30.0, ge=0.1, le=3600, description="How often a router asks for all pins."
    )
    router_lookup_timeout_s: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="How long `state_server` waits to hear where a session was last served.",
    )
    router_max_pending: int = Field(
        default=65_536,
        ge=1,
        le=1_000_000,
        description="Requests that may wait in a router; more are dropped.",
    )
    router_outside_rps: float = Field(
        default=500.0,
        ge=0,
        le=1e6,
        description="Requests a second that a router takes of each bus user outside; one counts n times, and "
        "once more for every 16 KiB. 0: no limit.",
    )
    router_outside_calls_s: int = Field(
        default=4000,
        ge=0,
        le=1_000_000,
        description="Messages a second that a router reads of all bus users outside together; the broker "
        "drops the others. 0: no limit.",
    )
    router_bus_users: str = Field(
        default="",
        description="The file in which `ryz bus-users` keeps users and their own limits; empty: all have the "
        "same.",
    )
    router_outside_max_priority: int = Field(
        default=0, ge=-10, le=10, description="A request of a bus user outside has at most that priority."
    )
    router_contested_places_s: float = Field(
        default=50.0,
        ge=0,
        le=1e6,
        description="When all groups are full and there are several tenants, requests of each for so many "
        "places a second go to a group all the same: its leader knows which tenant is to give way. 0: none.",
    )
    router_breaker_failures: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Losses of a group within the window that trip its breaker; or broken generations, if "
        "most were.",
    )
    router_breaker_window_s: float = Field(default=10.0, gt=0, le=3600, description="That window.")
    router_breaker_open_s: float = Field(
        default=0.5, gt=0, le=600, description="How long a breaker stays open at first; doubles up to 10 s."
    )
    router_balance_half_life_s: float = Field(
        default=60.0, gt=0, le=86_400, description="How fast a group's share of the work is forgotten."
    )

    def fleet_limits(self) -> FleetLimits:
        """What the fleet needs of these."""
        return FleetLimits(
            missed_heartbeats=self.router_missed_heartbeats,
            slack_s=self.router_heartbeat_slack_s,
            patience=self.router_heartbeat_patience,
            forget_s=self.router_forget_s,
            max_groups=self.router_max_groups,
            half_life_s=self.router_balance_half_life_s,
            hold_s=self.router_disconnect_hold_s,
            load=LoadLimits(self.router_max_inflight, self.router_assumed_service_s),
            breaker=BreakerLimits(
                self.router_breaker_failures, self.router_breaker_window_s, self.router_breaker_open_s
            ),
        )

    def hybrid_limits(self) -> HybridLimits:
        """When `hybrid` compares costs."""
        return HybridLimits(self.router_threshold, self.router_threshold_s, self.router_lead_s)

    def costs(self) -> Costs:
        """How they are made up."""
        return Costs(
            self.router_assumed_tokens_per_s,
            self.router_assumed_fetch_tokens_per_s,
            self.router_assumed_fetch_s,
            self.router_lead_price,
        )
