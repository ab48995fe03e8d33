"""What a router knows of models that hosts load and put to sleep: the parts in one value, and its answers."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from services.router.domain.decision import FleetView, Refusal
from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.activity import GroupActivity
from services.router.domain.models.control_state import ModelFleet
from services.router.domain.models.demand import DemandBook
from services.router.domain.models.offered import OfferedModels
from services.router.domain.models.refusals import refuse_away, refuse_offered, unknown_model
from services.router.domain.models.states import all_states, loading_for_s, parked, state_of
from services.router.domain.models.tenants import ModelTenants
from services.router.domain.policies.base import no_ready_group
from shared.messages import HostReport, ModelList, ModelState


@dataclass(slots=True)
class ModelBook:
    """Has no model if no host loads any.

    Attributes:
        too_large: Models that can never be loaded, with the reason, as the last decision said.
    """

    offered: OfferedModels = field(default_factory=OfferedModels)
    demand: DemandBook = field(default_factory=DemandBook)
    tenants: ModelTenants = field(default_factory=ModelTenants)
    activity: GroupActivity = field(default_factory=GroupActivity)
    too_large: dict[str, str] = field(default_factory=dict)

    def observe(self, report: HostReport, now: float) -> bool:
        """Takes in a host's report; returns False for one that is older than what is known."""
        if not self.offered.observe(report, now):
            return False
        for offer in report.models:
            if offer.retry_ms:
                self.demand.begin_anew(offer.card.name, now)
        return True

    def states(self, fleet: Fleet, now: float) -> list[ModelState]:
        """The states of all models that are offered."""
        return all_states(self.offered, fleet, self.demand, now)

    def list_for(self, tenant: str, fleet: Fleet, now: float) -> ModelList:
        """What can be routed to, what is away and what hosts offer.

        Args:
            tenant: Only what it may use, without the names of other tenants; empty: everything.
        """
        models = fleet.models(now)
        away = {group.heartbeat.model.name for group in fleet.groups()}.union(self.offered.away())
        known = ModelList(
            models=models,
            away=sorted(away.difference(card.name for card in models)),
            offered=self.states(fleet, now),
            hosts=[host.report.host for host in self.offered.hosts()],
        )
        return self._only_for(tenant, known, fleet) if tenant else known

    def _only_for(self, tenant: str, known: ModelList, fleet: Fleet) -> ModelList:
        return ModelList(
            models=[
                replace(card, tenants=[]) for card in known.models if self.admits(card.name, tenant, fleet)
            ],
            away=[name for name in known.away if self.admits(name, tenant, fleet)],
            offered=[
                replace(state, card=replace(state.card, tenants=[]))
                for state in known.offered
                if self.admits(state.card.name, tenant, fleet)
            ],
        )

    def view(self, fleet: Fleet, now: float) -> ModelFleet:
        """What the controller decides on."""
        return self.activity.view(self.offered, fleet, self.demand, now)

    def refusal(self, model: str, fleet: Fleet, now: float) -> Refusal | None:
        """The refusal of a request for a model that is offered; None: no host offers it."""
        state = state_of(model, self.offered, fleet, self.demand, now)
        if state is None:
            return refuse_away(model) if model in self.offered.away() else None
        return refuse_offered(
            state,
            parked=parked(model, self.offered),
            loading_for_s=loading_for_s(model, self.offered, now),
            too_large=self.too_large.get(model, ""),
        )

    def has_model(self, model: str, fleet: Fleet) -> bool:
        """Whether a group serves a model of that name, or a host offers it, ready or not."""
        if self.offered.offers(model) or model in self.offered.away():
            return True
        return any(group.heartbeat.model.name == model for group in fleet.groups())

    def admits(self, model: str, tenant: str, fleet: Fleet) -> bool:
        """Whether a tenant may use a model: all its groups and hosts let it."""
        return self.tenants.admits(model, tenant, fleet) and self.offered.admits(model, tenant)

    def unknown(self, model: str, tenant: str, fleet: Fleet, now: float) -> Refusal:
        """The refusal of a request for a model that is not there, or that its tenant may not use.

        It is the same for both, and names the models that the tenant may use.
        """
        served = [card.name for card in fleet.models(now) if self.admits(card.name, tenant, fleet)]
        if not self.offered:
            return no_ready_group(FleetView(model, models=served))
        offered = {name for name in self.offered.names() if self.admits(name, tenant, fleet)}
        return unknown_model(model, sorted(offered.union(served)))

    def expire(self, now: float, patience_s: float = 0.0) -> list[str]:
        """Drops what is too old; returns hosts that are gone. `patience_s` as in `OfferedModels.expire`."""
        self.demand.expire(now)
        return self.offered.expire(now, patience_s)
