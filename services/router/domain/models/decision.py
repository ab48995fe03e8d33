"""Which groups start and stop on all hosts. Pure, and without memory: all of it is in the argument.

The same fleet gives the same actions, whatever the order of its parts. So a controller that takes over goes
on where another one stopped. `claims.py` says what is loaded and in which order, `placement.py` where,
`eviction.py` what shrinks and stops for it, `retirement.py` what stops anyway, `scaling.py` when a model gets
more groups and larger KV caches.
"""

from collections.abc import Mapping, Sequence

from services.router.domain.models.claims import can_ever_fit, claims
from services.router.domain.models.control_state import Action, Demand, ModelFleet, Refused
from services.router.domain.models.host_plan import HostPlan
from services.router.domain.models.placement import place
from services.router.domain.models.retirement import retire
from services.router.domain.models.scaling import grow, scale_up


def decide(fleet: ModelFleet) -> list[Action]:
    """What is to be done now; empty if nothing is."""
    plans = [HostPlan(host) for host in sorted(fleet.hosts, key=lambda host: host.name)]
    demand = {model: fleet.demand[model] for model in sorted(fleet.demand) if fleet.demand[model].requests}
    actions: list[Action] = []
    for plan in plans:
        actions += retire(plan, demand)
    actions += _refusals(plans, demand)
    for claim in claims(plans, demand):
        if claim.reason != "demand" or not any(plan.loading == claim.model for plan in plans):
            actions += place(claim, demand)
    actions += scale_up(plans, demand)
    for plan in plans:
        actions += grow(plan)
    return actions


def _refusals(plans: Sequence[HostPlan], demand: Mapping[str, Demand]) -> list[Refused]:
    refused = []
    for model in demand:
        hosts = [plan for plan in plans if model in plan.offers and plan.offers[model].wish != "unload"]
        if not hosts or any(plan.running_of(model) for plan in plans):
            continue
        if not any(can_ever_fit(plan, model) for plan in hosts):
            refused.append(Refused(model, _why(model, hosts)))
    return refused


def _why(model: str, hosts: Sequence[HostPlan]) -> str:
    plan = max(hosts, key=lambda plan: (plan.largest_room() - plan.need_bytes(model), plan.name))
    sentence = (
        f"The model {model} needs {_in_words(plan.need_bytes(model))} of memory, and "
        f"the host with the most room for it has {_in_words(plan.budget_bytes)}"
    )
    if kept := plan.kept_bytes():
        sentence += f", of which models that stay loaded take {_in_words(kept)}"
    return sentence + "."


def _in_words(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
