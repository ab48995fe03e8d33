"""Builds what the model controller decides on, from a test's description. One byte is one unit."""

from services.router.domain.models.control_state import (
    FIXED,
    Demand,
    GroupState,
    HostState,
    KVState,
    ModelFleet,
)
from shared.messages import ModelCard, OfferedModel
from shared.messages.models import Wish


def offer(
    name: str,
    first_bytes: int = 4,
    *,
    next_bytes: int = 2,
    load_s: float = 1.0,
    least: int = 0,
    most: int = 1,
    priority: int = 0,
    pinned: bool = False,
    sleep_s: float = 0.0,
    wish: Wish = "",
    retry_s: float = 0.0,
    local: bool = False,
) -> OfferedModel:
    return OfferedModel(
        card=ModelCard(name=name, context_length=1024),
        first_bytes=first_bytes,
        next_bytes=next_bytes,
        load_ms=int(1000 * load_s),
        least_groups=least,
        most_groups=most,
        priority=priority,
        pinned=pinned,
        sleep_ms=int(1000 * sleep_s),
        wish=wish,
        failure="It is broken." if retry_s else "",
        retry_ms=int(1000 * retry_s),
        local=local,
    )


def idle(
    name: str,
    model: str,
    charged_bytes: int = 4,
    *,
    idle_s: float = 60.0,
    ready_s: float = 60.0,
    load_s: float = 1.0,
    served: bool = True,
    kv: KVState = FIXED,
) -> GroupState:
    return GroupState(
        name, model, charged_bytes, ready=True, idle_s=idle_s, ready_s=ready_s, load_s=load_s, served=served,
        kv=kv,
    )  # fmt: skip


def busy(
    name: str,
    model: str,
    charged_bytes: int = 4,
    *,
    ready_s: float = 60.0,
    load_s: float = 1.0,
    waiting: int = 0,
    kv: KVState = FIXED,
) -> GroupState:
    return GroupState(
        name, model, charged_bytes, ready=True, busy=1 + waiting, waiting=waiting, ready_s=ready_s,
        load_s=load_s, served=True, kv=kv,
    )  # fmt: skip


def starting(name: str, model: str, charged_bytes: int = 4) -> GroupState:
    return GroupState(name, model, charged_bytes)


def stopping(name: str, model: str, charged_bytes: int = 4) -> GroupState:
    return GroupState(name, model, charged_bytes, stopping=True, ready_s=60.0, load_s=1.0, served=True)


def host(
    budget_bytes: int,
    offers: list[OfferedModel],
    *groups: GroupState,
    name: str = "h1",
) -> HostState:
    return HostState(name, budget_bytes, tuple(offers), groups)


def fleet(*hosts: HostState, **waited_s: float) -> ModelFleet:
    """A fleet with a request for each of some models, which has waited so long."""
    return ModelFleet(hosts, {model: Demand(1, wait) for model, wait in waited_s.items()})
