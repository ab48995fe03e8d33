"""Fair shares of the running slots: a free slot goes to the waiting tenant that has the fewest.

Where there are no API keys, gateways name the address of each caller (`GenerateRequest.party`), which counts
like a tenant here.

A tenant may have every slot while the others are idle; with others waiting it gets no more of the slots
that become free than they do. A higher priority goes first, and so do sequences that have begun, since a
caller has tokens of them.
"""

import math
from collections import Counter
from collections.abc import Mapping

from services.worker.domain.scheduling.sequence import Sequence

_Rank = tuple[int, int, tuple[int, int]]  # priority, slots of the tenant, order; the least goes first


def most_running(max_running: int, tenant_share: float) -> int:
    """Returns how many running slots one tenant may have."""
    return min(max_running, max(1, math.ceil(max_running * tenant_share)))


def next_by_tenant(
    waiting: Mapping[str, list[Sequence]], running: Mapping[str, int], passed: Counter[str], most: int
) -> Sequence | None:
    """Returns the waiting sequence that is next.

    Args:
        waiting: Each tenant's sequences, in order.
        running: How many slots each tenant has.
        passed: How many of each tenant's first sequences cannot come in now.
        most: Slots that one tenant may have.

    Returns:
        The sequence; None if those that are left have to wait.
    """
    best: Sequence | None = None
    best_rank: _Rank | None = None
    for tenant, queue in waiting.items():
        held, first = running.get(tenant, 0), passed[tenant]
        if held >= most or first >= len(queue):
            continue
        sequence = queue[first]
        if len(waiting) == 1:
            return sequence
        rank = (-sequence.priority, -1 if _has_begun(sequence) else held, sequence.order)
        if best_rank is None or rank < best_rank:
            best, best_rank = sequence, rank
    return best


def _has_begun(sequence: Sequence) -> bool:
    return sequence.num_preemptions > 0 or sequence.arrival < 0
