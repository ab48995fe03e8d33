"""Load shedding: which waiting requests lose their slots to a request that has more right to one.

Background work goes first, then requests of lower priority of the newcomer's own tenant. Then a tenant that
holds less than its share of the waiting slots may take one of a tenant that holds more; shares are by weight,
and a priority of one tenant counts for nothing beside another's. Requests that have begun keep their slots.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shared.messages.base import BACKGROUND_PRIORITY


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, or asks for a slot.

    Attributes:
        request_id: Its `request_key`.
        tenant: Its tenant, or the party that it counts for.
        priority: A higher one goes first, within its tenant; the lowest is background work.
        slots: One for each sequence.
        arrived: When it arrived; orders requests in time.
        firm: Whether its caller has tokens already, so that it keeps its slot.
        weight: Of its tenant.
    """

    request_id: str
    tenant: str
    priority: int
    slots: int
    arrived: float = 0.0
    firm: bool = False
    weight: float = 1.0

    @property
    def is_background(self) -> bool:
        """Whether it is to run in the room that others leave."""
        return self.priority <= BACKGROUND_PRIORITY


def displaced_by(newcomer: WaitingRequest, waiting: Iterable[WaitingRequest], missing: int) -> list[str]:
    """Returns the requests that are displaced so that `missing` slots become free; none if that cannot be.

    First those that the newcomer goes before: of the lowest priority, of the tenant that holds most slots,
    the newest. Then, while the newcomer's tenant stays within its share, the newest of lowest priority of the
    tenant that holds most above its own. None displaces one that could displace it in turn: with several
    slots each, shares move that far.
    """
    queue = list(waiting)
    gone = _chosen(newcomer, queue, missing)
    left = [waiter for waiter in queue if waiter.request_id not in gone] + [newcomer]
    equals = [w for w in queue if w.request_id in gone and not _goes_before(newcomer, w)]
    in_turn = any(newcomer.request_id in _chosen(equal, left, equal.slots) for equal in equals)
    return [] if in_turn else gone


def _goes_before(newcomer: WaitingRequest, waiter: WaitingRequest) -> bool:
    if newcomer.is_background or waiter.is_background:
        return waiter.is_background and not newcomer.is_background
    return waiter.tenant == newcomer.tenant and waiter.priority < newcomer.priority


def _chosen(newcomer: WaitingRequest, waiting: list[WaitingRequest], missing: int) -> list[str]:
    held: Counter[str] = Counter()
    weights = {waiter.tenant: waiter.weight for waiter in waiting} | {newcomer.tenant: newcomer.weight}
    candidates: list[WaitingRequest] = []
    for waiter in waiting:
        held[waiter.tenant] += waiter.slots
        if not waiter.firm and (waiter.is_background or not newcomer.is_background):
            candidates.append(waiter)
    gone: list[str] = []
    while missing > 0:
        victim = _next(newcomer, candidates, held, weights)
        if victim is None:
            return []
        candidates.remove(victim)
        held[victim.tenant] -= victim.slots
        missing -= victim.slots
        gone.append(victim.request_id)
    return gone


def _next(
    newcomer: WaitingRequest,
    candidates: list[WaitingRequest],
    held: Counter[str],
    weights: dict[str, float],
) -> WaitingRequest | None:
    lower = [waiter for waiter in candidates if _goes_before(newcomer, waiter)]
    if lower:
        return min(lower, key=lambda waiter: (waiter.priority, -held[waiter.tenant], -waiter.arrived))
    tenants = {tenant for tenant, slots in held.items() if slots} | {newcomer.tenant}
    total = sum(weights[tenant] for tenant in tenants)
    share = (held.total() + newcomer.slots) / total  # of a tenant of weight 1
    if held[newcomer.tenant] + newcomer.slots > share * newcomer.weight:
        return None
    greedy = [waiter for waiter in candidates if held[waiter.tenant] > share * weights[waiter.tenant]]
    return min(
        greedy,
        key=lambda waiter: (-held[waiter.tenant] / weights[waiter.tenant], waiter.priority, -waiter.arrived),
        default=None,
    )
