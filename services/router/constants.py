"""What a router's settings leave out, because no operator has a reason to change it. Times are in seconds.

Each value is stated once, beside its reason: here, or as a default of the limits that are named here.
`RouterSettings` carries them, so that tests can run a router with others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies.costs import Costs
from shared.gone_settings import Replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConstants:
    """The constants of a router."""

    fleet: FleetLimits = field(default_factory=FleetLimits)
    """When a group is lost, and what is assumed of it."""
    costs: Costs = field(default_factory=Costs)
    """The costs that are assumed until groups have measured theirs."""
    reconnect_s: float = 1.5
    """How long groups may take to come back after the broker was away, before silence counts."""
    warmup_s: float = 0.25
    """How long a new router listens before it answers: ten heartbeats of each group."""
    tick_s: float = 0.025
    """Interval of the search for silent groups: that of heartbeats."""
    duplicates_s: float = 30.0
    """How long a request's group is remembered, for copies of the request. A caller sends the last one in the
    first seconds (`ClientConstants.max_publishes`)."""
    duplicates_max: int = 65_536
    """Requests whose group is remembered. A copy of a forgotten one may be computed twice."""
    forward_s: float = 2.0
    """How long a request is kept until a group takes it. Without an answer, its caller sends it again."""
    forward_max_bytes: int = 64 * 2**20
    """Bytes of requests that are kept so: a bound against floods."""
    max_forwards: int = 3
    """Groups to which a request is sent in turn until one takes it; then the caller's retry is next."""
    sessions_s: float = 3600.0
    """How long a session without a turn is remembered. Losing the entry costs a fetch of its KV."""
    sessions_max: int = 65_536
    """Entries about sessions; each session has up to two. As above."""
    pins_refresh_s: float = 30.0
    """Interval at which all pins are read again; changes are announced at once, this is for lost ones."""
    adapters_refresh_s: float = 10.0
    """Interval at which the register of adapters is compared, likewise."""
    lookup_timeout_s: float = 0.1
    """How long `state_server` waits to learn where a session was last served; then it chooses without."""
    max_pending: int = 65_536
    """Requests that may wait in a router; more are dropped, and their callers send them again."""
    models_tick_s: float = 0.25
    """Interval of decisions about which models to load and to put to sleep."""
    models_pause_s: float = 0.05
    """Least time between two of them; a model that becomes wanted is decided on at once otherwise."""
    lease_ttl_s: float = 3.0
    """How long a router commands the agents of hosts without prolonging its lease: so long a router that was
    killed delays the next load."""
    lease_claim_s: float = 1.0
    """Interval of claims of the lease."""
    command_timeout_s: float = 2.0
    """How long an agent may take to answer a command, and then to show in a report what it did."""
    contested_slots_per_s: float = 50.0
    """Requests per second of each of several tenants that go to a group although all are full; its leader
    decides which tenant's request is displaced."""


def constant_settings() -> Mapping[str, object]:
    """Return the values of constants that were settings, by their variables."""
    constants = RouterConstants()
    fleet, costs, load, breaker = (
        constants.fleet,
        constants.costs,
        constants.fleet.load,
        constants.fleet.breaker,
    )
    return MappingProxyType(
        {
            "RYZ_ROUTER_LEAD_PRICE": costs.lead_price,
            "RYZ_ROUTER_MAX_INFLIGHT": load.max_inflight,
            "RYZ_ROUTER_ASSUMED_SERVICE_S": load.assumed_service_s,
            "RYZ_ROUTER_ASSUMED_TOKENS_PER_S": load.assumed_tokens_per_s,
            "RYZ_ROUTER_ASSUMED_FETCH_TOKENS_PER_S": costs.assumed_fetch_tokens_per_s,
            "RYZ_ROUTER_ASSUMED_FETCH_S": costs.assumed_fetch_s,
            "RYZ_ROUTER_MISSED_HEARTBEATS": fleet.missed_heartbeats,
            "RYZ_ROUTER_HEARTBEAT_PATIENCE": fleet.patience,
            "RYZ_ROUTER_DISCONNECT_HOLD_S": fleet.hold_s,
            "RYZ_ROUTER_RECONNECT_S": constants.reconnect_s,
            "RYZ_ROUTER_FORGET_S": fleet.forget_s,
            "RYZ_ROUTER_MAX_GROUPS": fleet.max_groups,
            "RYZ_ROUTER_WARMUP_S": constants.warmup_s,
            "RYZ_ROUTER_TICK_S": constants.tick_s,
            "RYZ_ROUTER_DUPLICATES_S": constants.duplicates_s,
            "RYZ_ROUTER_DUPLICATES_MAX": constants.duplicates_max,
            "RYZ_ROUTER_FORWARD_S": constants.forward_s,
            "RYZ_ROUTER_FORWARD_MAX_BYTES": constants.forward_max_bytes,
            "RYZ_ROUTER_MAX_FORWARDS": constants.max_forwards,
            "RYZ_ROUTER_SESSIONS_MAX": constants.sessions_max,
            "RYZ_ROUTER_SESSIONS_S": constants.sessions_s,
            "RYZ_ROUTER_PINS_REFRESH_S": constants.pins_refresh_s,
            "RYZ_ROUTER_LOOKUP_TIMEOUT_S": constants.lookup_timeout_s,
            "RYZ_ROUTER_MAX_PENDING": constants.max_pending,
            "RYZ_ROUTER_CONTESTED_PLACES_S": constants.contested_slots_per_s,
            "RYZ_ROUTER_BREAKER_FAILURES": breaker.failures,
            "RYZ_ROUTER_BREAKER_WINDOW_S": breaker.window_s,
            "RYZ_ROUTER_BREAKER_OPEN_S": breaker.open_s,
            "RYZ_ROUTER_BALANCE_HALF_LIFE_S": fleet.half_life_s,
            "RYZ_ROUTER_BUS_USERS": Replaced(
                "bus users are records beside keys (`ryz keys list`), and "
                "`ryz keys broker-config` takes in the users of such a file"
            ),
        }
    )
