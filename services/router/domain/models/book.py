"""What a router knows of models that hosts load and put to sleep: the parts in one value, and its answers."""

from dataclasses import dataclass, field

from services.router.domain.decision import Refusal
from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.activity import GroupActivity
from services.router.domain.models.control_state import ModelFleet
from services.router.domain.models.demand import DemandBook
from services.router.domain.models.offered import OfferedModels
from services.router.domain.models.refusals import refuse_away, refuse_offered, unknown_model
from services.router.domain.models.states import all_states, loading_for_s, parked, state_of
from shared.messages import HostReport, ModelState


@dataclass(slots=True)
class ModelBook:
    """Has no model if no host loads any.

    Attributes:
        too_large: Models that can never be loaded, with the reason, as the last decision said.
    """

    offered: OfferedModels = field(default_factory=OfferedModels)
    demand: DemandBook = field(default_factory=DemandBook)
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

    def unknown(self, model: str, fleet: Fleet, now: float) -> Refusal | None:
        """The refusal of a request for a model that is not offered; None where hosts offer no models."""
        if not self.offered:
            return None
        served = {card.name for card in fleet.models(now)}
        return unknown_model(model, sorted(served.union(self.offered.names())))

    def expire(self, now: float) -> list[str]:
        """Drops what is too old; returns hosts that are gone."""
        self.demand.expire(now)
        return self.offered.expire(now)
