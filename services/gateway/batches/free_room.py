"""How many requests of batches may begin now. Pure."""

from collections.abc import Iterable

from shared.messages import Load

AT_ONCE = 8  # requests that begin together: the next heartbeats show what they cost


def free_room(loads: Iterable[Load], running_here: int, *, max_running: int, share: float) -> int:
    """Returns how many more requests may begin.

    A group in which requests wait has no room. Else batches may fill `share` of its running places, and what
    interactive requests hold of these is not free.

    Args:
        loads: Of the groups that are ready, as their last heartbeats tell.
        running_here: Requests of batches that run in this gateway.
        max_running: The most of these.
        share: Of the groups' running places.
    """
    free = sum(max(0, int(load.max_running * share) - load.running) for load in loads if not load.waiting)
    return max(0, min(free, AT_ONCE, max_running - running_here))
