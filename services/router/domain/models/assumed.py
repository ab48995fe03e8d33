"""Commands that were sent and are not in a host's reports yet: they count as carried out. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.router.domain.models.control_state import (
    Command,
    GroupState,
    HostState,
    ModelFleet,
    Resize,
    Stop,
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A command on its way.

    Attributes:
        running: Groups of the model that the host had when a `Load` was sent.
    """

    action: Command
    running: int = 0


def assume(fleet: ModelFleet, commands: Iterable[Sent]) -> ModelFleet:
    """Returns the fleet as it is once these commands are carried out."""
    by_host: dict[str, list[Sent]] = {}
    for sent in commands:
        by_host.setdefault(sent.action.host, []).append(sent)
    if not by_host:
        return fleet
    hosts = tuple(_assume(host, by_host.get(host.name, ())) for host in fleet.hosts)
    return replace(fleet, hosts=hosts)


def _assume(host: HostState, commands: Iterable[Sent]) -> HostState:
    groups = list(host.groups)
    for sent in commands:
        action = sent.action
        if isinstance(action, Stop):
            groups = [replace(one, stopping=True) if one.name == action.group else one for one in groups]
        elif isinstance(action, Resize):
            groups = [_resized(one, action.kv_bytes) if one.name == action.group else one for one in groups]
        elif sum(one.model == action.model for one in groups) <= sent.running:
            groups.append(
                GroupState(f"a new group of {action.model}", action.model, _bytes(host, action.model))
            )
    return replace(host, groups=tuple(groups))


def _resized(group: GroupState, kv_bytes: int) -> GroupState:
    """What its cache gives up still counts, what it gets counts already."""
    kv, more = group.kv, kv_bytes - group.kv.limit_bytes
    if more <= 0:
        return replace(group, kv=replace(kv, freeing_bytes=-more, age_s=0.0))
    resized = replace(kv, limit_bytes=kv_bytes, age_s=0.0)
    return replace(group, charged_bytes=group.charged_bytes + more, kv=resized)


def _bytes(host: HostState, model: str) -> int:
    """Memory that one more group of the model needs there."""
    offer = next((one for one in host.offers if one.card.name == model), None)
    if offer is None:
        return 0
    there = any(one.model == model and not one.stopping for one in host.groups)
    return offer.next_bytes if there else offer.first_bytes
