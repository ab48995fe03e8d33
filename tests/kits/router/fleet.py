"""Builds fleet states from a test's description of the groups."""

from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies import PolicyName
from shared.messages import Heartbeat, Load, ModelCard, State

POLICIES: tuple[PolicyName, ...] = (
    "round_robin",
    "weighted",
    "least_loaded",
    "sticky",
    "state_server",
    "hybrid",
)


def beat(
    seq: int = 1,
    *,
    name: str = "g0",
    instance: str = "i1",
    state: State = "ready",
    running: int = 0,
    waiting: int = 0,
    accepted: int = 0,
    model: str = "m",
    queued_tokens: int = 0,
    tokens_per_s: float = 0.0,
) -> Heartbeat:
    load = Load(
        running=running,
        waiting=waiting,
        max_running=8,
        max_waiting=8,
        queued_tokens=queued_tokens,
        tokens_per_s=tokens_per_s,
    )
    return Heartbeat(
        group=name,
        instance_id=instance,
        seq=seq,
        interval_ms=100,
        state=state,
        model=ModelCard(name=model, context_length=1024),
        load=load,
        accepted_total=accepted,
    )


def new_fleet() -> Fleet:
    return Fleet(FleetLimits(router_heartbeat_slack_s=0.05))
