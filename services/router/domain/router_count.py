"""How many routers share the requests. Pure; `now` is monotonic seconds everywhere.

The broker gives each request to one router at random, and each router chooses groups by the heartbeats and by
what it sent itself since the last one. Two routers would each see half of a burst. With their number a router
knows about how much all of them sent.
"""

from math import inf

ANNOUNCE_S = 1.0  # between two messages of a router that it runs
_FORGET_S = 3 * ANNOUNCE_S
_MOST = 256  # identifiers that are remembered


class RouterCount:
    """The other routers that were heard lately, and this one."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}
        self._look_at = inf  # no router is to be forgotten before

    def heard(self, router_id: str, now: float) -> None:
        """Another router runs and takes requests."""
        if router_id in self._heard_at or len(self._heard_at) < _MOST:
            self._heard_at[router_id] = now
            self._look_at = min(self._look_at, now + _FORGET_S)

    def left(self, router_id: str) -> None:
        """Another router takes no more requests."""
        self._heard_at.pop(router_id, None)

    def count(self, now: float) -> int:
        """All routers, this one included."""
        if now >= self._look_at:
            self._heard_at = {one: at for one, at in self._heard_at.items() if now < at + _FORGET_S}
            self._look_at = min(self._heard_at.values(), default=inf) + _FORGET_S
        return 1 + len(self._heard_at)
