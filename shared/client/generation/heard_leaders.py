"""Remembers when a client last heard from each leader, to tell a false loss from a real one. Pure.

Routers give a leader up that they do not hear, and on a busy machine they may be wrong. A process that is
gone never speaks again, so one frame of the same instance, long enough after the loss, shows that it was
false.
"""

from collections import OrderedDict
from math import inf

LAST_FRAMES_S = 0.3  # after a loss, frames that the leader sent before it may still arrive
MAX_LEADERS = 1024


class HeardLeaders:
    """The leaders whose frames one client has had lately, by instance id."""

    def __init__(self) -> None:
        self._heard_at: OrderedDict[str, float] = OrderedDict()

    def note(self, instance_id: str, now: float) -> None:
        """Frames of that instance have arrived; an empty id is no instance."""
        if not instance_id:
            return
        self._heard_at[instance_id] = now
        if len(self._heard_at) > MAX_LEADERS:
            self._heard_at.popitem(last=False)

    def heard_since(self, instance_id: str, since: float) -> bool:
        """Whether that instance has been heard after `since`."""
        return self._heard_at.get(instance_id, -inf) > since

    def outlived(self, instance_id: str, lost_at: float) -> bool:
        """Whether that instance has sent anything since it was given up at `lost_at`."""
        return self.heard_since(instance_id, lost_at + LAST_FRAMES_S)
