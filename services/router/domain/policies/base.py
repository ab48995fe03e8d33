"""The contract of a policy, and what policies share: reasons, refusals, the least-loaded group.

| reason | by | why the request goes to this group |
|---|---|---|
| `preferred` | sticky, hybrid | the session's home, and its last group as far as is known |
| `preferred_busy` | hybrid | the same, though it is busy: no other group would serve the turn sooner |
| `last_group` | state_server, hybrid | the session was served here last, and has its KV here |
| `last_group_busy` | hybrid | the same, though it is busy |
| `last_group_away` | state_server, hybrid | the last group takes no requests: home, or the least loaded (C) |
| `return_home` | hybrid | back home, as the last group is busy or full, and home costs less with the move |
| `spill_wait` | hybrid | the session's group lets requests wait; here the turn is served sooner |
| `spill_balance` | hybrid | the session's group had more than its share of work; moving costs little |
| `spill_share` | hybrid | the session's group lets requests wait, and had the part of its party |
| `spill_full` | sticky, state_server, hybrid | the session's group has no queue slot left |
| `new_session`, `least_loaded` | state_server; least_loaded | it would start the request first |
| `turn` | round_robin, weighted | it is next in the rotation ||
| `pinned`, `pin_away` | every policy | the session is pinned here; or the group it is pinned to is away |
| `resumed` | every policy | it was on a group that was lost or drains; here it starts soonest |
| `urgent_full` | every policy | all are full, but its priority is for the leader to weigh, or it is resumed |
| `contested_full` | every policy | all are full, perhaps with another tenant's requests: the leader knows |
| `duplicate` | every policy | an earlier copy of the request went here |

A policy never sees a group that is lost, tripped or draining (`FleetView.ready` leaves them out), and never
chooses one that is full; `choice.py` does, for urgent requests. `policies/__init__.py` builds one by its
name.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from services.router.domain.decision import UNABLE, Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.rendezvous import preferred
from shared.guest_needs import GUEST_CANNOT
from shared.guest_needs import refusal as guest_refusal

RETRY_STARTING_S = 1.0
RETRY_FAILED_S = 30.0  # a failed group makes its next start after so long; no request waits for it
RETRY_MIN_S = 0.1
RETRY_MAX_S = 30.0
# Of an adapter that a group has to read first: no group has measured that yet
_ADAPTER_S, _ADAPTER_BYTES_PER_S = 0.02, 500e6


class Policy(Protocol):
    """Chooses a group. Equal requests and fleets give equal decisions, but for policies that rotate."""

    name: str

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """An assignment to a ready group that is not full, or a refusal. `now` is monotonic seconds."""
        ...


def refusal(fleet: FleetView) -> Refusal | None:
    """The reason for refusing a request for this model, or None if a group can take it."""
    groups = fleet.ready
    if not groups:
        return no_ready_group(fleet)
    for group in groups:
        if not group.full:
            return None
    return Refusal(
        "overloaded",
        "all_full",
        f"all {len(groups)} groups of model {fleet.model!r} are full",
        retry_after_s(min(group.wait_s for group in groups)),
    )


def retry_after_s(wait_s: float) -> float:
    """When to come back to a group that has no slot, and would start a new request after `wait_s`."""
    return round(min(RETRY_MAX_S, max(RETRY_MIN_S, wait_s)), 3)


def no_ready_group(fleet: FleetView) -> Refusal:
    """The refusal for a model of which no group takes requests.

    While no group is ready at all, no model is unknown: its group may load it, and not have been heard yet.
    While a group that could serve the request is away, the request waits for it.
    """
    if not fleet.away:
        if not fleet.models:
            message = f"no group of any model is ready; one of {fleet.model!r} may be starting"
            return Refusal("unavailable", "no_group", message, RETRY_STARTING_S)
        return Refusal(
            "model_not_found",
            "unknown_model",
            f"no group serves model {fleet.model!r}; models that are served: {', '.join(fleet.models)}",
            param="model",
        )
    standings, unable = set(fleet.away.values()), fleet.unable
    if unable is not None and standings == {UNABLE}:
        error = guest_refusal(unable.lack, unable.guest, fleet.model, resumed=unable.resumed)
        return Refusal(error.code, GUEST_CANNOT, error.message, param=unable.lack.field)
    states = ", ".join(f"{name} is {state}" for name, state in sorted(fleet.away.items()))
    failed = standings == {"failed"}
    return Refusal(
        "unavailable",
        "no_group",
        f"no group of model {fleet.model!r} is ready ({states})",
        RETRY_FAILED_S if failed else RETRY_STARTING_S,
    )


def not_known_yet(model: str) -> Refusal:
    """The refusal of a router that has just started, for a model of which it has heard no group."""
    message = f"no group of model {model!r} has been heard yet; this router has just started"
    return Refusal("unavailable", "no_group", message, RETRY_STARTING_S)


def adapter_s(request: RequestFacts, group: GroupView) -> float:
    """Seconds until the group has the request's adapter; 0 if it has it, or the request needs none."""
    if not request.adapter or group.has_adapter:
        return 0.0
    return _ADAPTER_S + request.adapter_bytes / _ADAPTER_BYTES_PER_S


def starts_in(request: RequestFacts) -> Callable[[GroupView], float]:
    """The time until a group would start the request, with the reading of its adapter."""
    if not request.adapter:
        return lambda group: group.wait_s
    return lambda group: group.wait_s + adapter_s(request, group)


def least_loaded(
    key: str, groups: Sequence[GroupView], load_s: Callable[[GroupView], float] = lambda group: group.wait_s
) -> GroupView:
    """The group with the smallest load; of equal ones the less used, then the one that the key prefers.

    Args:
        groups: The groups to choose from.
        load_s: A group's load in seconds; by default the time until it would start the request.

    Raises:
        ValueError: all groups are full, or there are none.
    """
    least, tied = inf, list[GroupView]()
    for group in groups:
        if group.full:
            continue
        load = load_s(group)
        if load < least:
            least, tied = load, [group]
        elif load == least:
            tied.append(group)
    if len(tied) == 1:
        return tied[0]
    use = min(group.utilization for group in tied)
    return preferred(key, [group for group in tied if group.utilization == use])
