"""Load shedding: which waiting requests lose their slots to a request that has more right to one.

A higher priority goes before a lower one. At equal priority, a tenant that holds less than its share of the
waiting slots may take one of a tenant that holds more. Requests that have begun keep their slots.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, or asks for a slot.

    Attributes:
        request_id: Its `request_key`.
        tenant: Its tenant, or the party that it counts for.
        priority: A higher one goes first.
        slots: One for each sequence.
        arrived: When it arrived; orders requests in time.
        firm: Whether its caller has tokens already, so that it keeps its slot.
    """

    request_id: str
    tenant: str
    priority: int
    slots: int
    arrived: float = 0.0
    firm: bool = False


def displaced_by(newcomer: WaitingRequest, waiting: Iterable[WaitingRequest], missing: int) -> list[str]:
    """Returns the requests that are displaced so that `missing` slots become free; none if that cannot be.

    First those of lower priority: of the lowest, of the tenant that holds most slots, the newest. Then,
    while the newcomer's tenant stays within its share, the newest of the tenant that holds most above it.
    Shares are equal among the tenants that wait. No request is displaced by one of lower priority, and none
    displaces an equal one that could displace it in turn: with several slots each, shares move that far.
    """
    queue = list(waiting)
    gone = _chosen(newcomer, queue, missing)
    left = [waiter for waiter in queue if waiter.request_id not in gone] + [newcomer]
    equals = [w for w in queue if w.request_id in gone and w.priority == newcomer.priority]
    in_turn = any(newcomer.request_id in _chosen(equal, left, equal.slots) for equal in equals)
    return [] if in_turn else gone


def _chosen(newcomer: WaitingRequest, waiting: list[WaitingRequest], missing: int) -> list[str]:
    held: Counter[str] = Counter()
    candidates: list[WaitingRequest] = []
    for waiter in waiting:
        held[waiter.tenant] += waiter.slots
        if not waiter.firm and waiter.priority <= newcomer.priority:
            candidates.append(waiter)
    gone: list[str] = []
    while missing > 0:
        victim = _next(newcomer, candidates, held)
        if victim is None:
            return []
        candidates.remove(victim)
        held[victim.tenant] -= victim.slots
        missing -= victim.slots
        gone.append(victim.request_id)
    return gone


def _next(
    newcomer: WaitingRequest, candidates: list[WaitingRequest], held: Counter[str]
) -> WaitingRequest | None:
    lower = [waiter for waiter in candidates if waiter.priority < newcomer.priority]
    if lower:
        return min(lower, key=lambda waiter: (waiter.priority, -held[waiter.tenant], -waiter.arrived))
    tenants = {tenant for tenant, slots in held.items() if slots} | {newcomer.tenant}
    share = (held.total() + newcomer.slots) / len(tenants)
    if held[newcomer.tenant] + newcomer.slots > share:
        return None
    greedy = [waiter for waiter in candidates if held[waiter.tenant] > share]
    return min(greedy, key=lambda waiter: (-held[waiter.tenant], -waiter.arrived), default=None)
