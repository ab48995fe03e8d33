"""In what phase a model is that hosts offer, from their reports and the groups' heartbeats. Pure.

| phase | when |
|---|---|
| `ready` | a group takes requests, on whatever host |
| `loading` | a group's processes run, and are not about to end |
| `failed` | its last load failed on each host that offers it, and none may be tried again yet |
| `draining` | all groups that there are end |
| `asleep` | none runs, and a host has its files |
| `absent` | none runs, and no host has found them; or an operator unloaded it, or scaled it to no groups |
"""

from collections import Counter
from math import inf

from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.demand import DemandBook
from services.router.domain.models.offered import HostView, OfferedModels
from shared.messages import HostedGroup, ModelState, OfferedModel
from shared.messages.models import Phase

Offer = tuple[HostView, OfferedModel]
UNLOADED, SCALED_TO_NONE = "unload", "scaled to no groups"


def state_of(
    model: str, offered: OfferedModels, fleet: Fleet, demand: DemandBook, now: float
) -> ModelState | None:
    """The state of a model; None if no host offers it."""
    offers = offered.offers(model)
    if not offers:
        return None
    ready = sum(one.heartbeat.model.name == model and one.standing(now) == "ready" for one in fleet.groups())
    return _state(model, offers, ready, demand, now)


def all_states(offered: OfferedModels, fleet: Fleet, demand: DemandBook, now: float) -> list[ModelState]:
    """The states of all models that hosts offer, by name."""
    ready = Counter(one.heartbeat.model.name for one in fleet.groups() if one.standing(now) == "ready")
    return [_state(name, offered.offers(name), ready[name], demand, now) for name in offered.names()]


def _state(model: str, offers: list[Offer], ready: int, demand: DemandBook, now: float) -> ModelState:
    hosted = _hosted(model, offers)
    failure, retry_s = _failure(offers, now)
    phase = _phase(ready, hosted, offers, failed=bool(failure))
    first = offers[0][1]
    return ModelState(
        card=first.card,
        phase=phase,
        aliases=sorted({alias for _, offer in offers for alias in offer.aliases}),
        groups_ready=ready,
        groups=len(hosted),
        most_groups=sum(offer.most_groups for _, offer in offers),
        pinned=any(offer.pinned for _, offer in offers),
        priority=max(offer.priority for _, offer in offers),
        # each router remembers what it refused for 3 s, also what another one has given to a group since
        waiting=0 if ready else demand.waiting(model),
        why=failure or _wish(offers),
        retry_s=retry_s,
        load_s=max(offer.load_ms for _, offer in offers) / 1000,
        charged_bytes=sum(group.charged_bytes for _, group in hosted),
        first_bytes=max(offer.first_bytes for _, offer in offers),
    )


def parked(model: str, offered: OfferedModels) -> str:
    """How an operator has taken it away on each host that offers it; empty: it may be loaded on one."""
    why = _wish(offered.offers(model))
    return why if why in {UNLOADED, SCALED_TO_NONE} else ""


def is_resting(model: str, offered: OfferedModels) -> bool:
    """Whether a host offers it and none runs it: that no group takes requests is then meant so."""
    offers = offered.offers(model)
    return bool(offers) and all(group.phase != "running" for _, group in _hosted(model, offers))


def loading_for_s(model: str, offered: OfferedModels, now: float) -> float:
    """For how long the group has been loading that began first; 0: none is."""
    hosted = _hosted(model, offered.offers(model))
    ages = (group.age_ms / 1000 + now - host.heard_at for host, group in hosted if group.phase == "starting")
    return max(ages, default=0.0)


def _hosted(model: str, offers: list[Offer]) -> list[tuple[HostView, HostedGroup]]:
    return [(host, group) for host, _ in offers for group in host.report.groups if group.model == model]


def _phase(
    ready: int, hosted: list[tuple[HostView, HostedGroup]], offers: list[Offer], *, failed: bool
) -> Phase:
    if ready:
        return "ready"
    if any(group.phase != "stopping" for _, group in hosted):
        return "loading"
    if failed:
        return "failed"
    if hosted:
        return "draining"
    found = any(offer.local for _, offer in offers)
    return "asleep" if found and not all(_is_parked(offer) for _, offer in offers) else "absent"


def _failure(offers: list[Offer], now: float) -> tuple[str, float]:
    """Why it cannot be loaded on any host now, and the seconds until one may try again."""
    left = [(_retry_s(host, offer, now), offer.failure) for host, offer in offers if not _is_parked(offer)]
    if not left or any(not failure or retry_s <= 0 for retry_s, failure in left):
        return "", 0.0
    retry_s, failure = min(left)
    return failure, 0.0 if retry_s == inf else retry_s


def _retry_s(host: HostView, offer: OfferedModel, now: float) -> float:
    """Seconds until a model may be tried again; infinite if no group of it may run: it was not found."""
    return offer.retry_ms / 1000 - (now - host.heard_at) if offer.most_groups else inf


def _wish(offers: list[Offer]) -> str:
    """The wish of operators; that it is taken away counts only if it is on each host."""
    wishes = {offer.wish for _, offer in offers}
    if offers and all(_is_parked(offer) for _, offer in offers):
        return UNLOADED if UNLOADED in wishes else SCALED_TO_NONE
    return next((str(wish) for wish in ("load", "sleep") if wish in wishes), "")


def _is_parked(offer: OfferedModel) -> bool:
    """Whether an operator wants no group of it. A model that is still to be found has no size either."""
    return offer.wish == UNLOADED or (not offer.most_groups and offer.first_bytes > 0)
