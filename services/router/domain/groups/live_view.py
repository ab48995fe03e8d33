"""A view of the fleet that makes each group's view when it is read.

Most decisions need one group or two. Making the views of a thousand groups takes longer than to decide.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from services.router.domain.decision import FleetView, GroupView
from services.router.domain.groups.group import Group
from services.router.domain.rendezvous import preferred


class Wanted(NamedTuple):
    """What requests ask for: a model, and the fingerprint of an adapter; empty: none."""

    model: str
    adapter: str = ""


class LiveView(FleetView):
    """A view that is good until the fleet changes; make a new one for each decision."""

    def __init__(
        self,
        wanted: Wanted,
        groups: Mapping[str, Group],
        see: Callable[[Group], GroupView],
        away: Mapping[str, str],
        models: Sequence[str],
    ) -> None:
        super().__init__(wanted.model, away=away, models=models, adapter=wanted.adapter)
        self._groups = groups
        self._see = see
        self._seen: dict[str, GroupView] = {}
        self._all_seen: tuple[GroupView, ...] | None = None

    @property
    def ready(self) -> tuple[GroupView, ...]:
        """See `FleetView.ready`."""
        if self._all_seen is None:  # functools' cached property takes a lock
            self._all_seen = tuple([self._view(self._groups[name]) for name in sorted(self._groups)])
        return self._all_seen

    @property
    def names(self) -> Collection[str]:
        """See `FleetView.names`."""
        return self._groups.keys()

    def find(self, name: str) -> GroupView | None:
        """See `FleetView.find`."""
        group = self._groups.get(name)
        return self._view(group) if group is not None else None

    def home(self, key: str) -> GroupView | None:
        """See `FleetView.home`."""
        if not self._groups:
            return None
        groups = list(self._groups.values())
        if self.adapter:
            having = [group for group in groups if self.adapter in group.heartbeat.adapters]
            key, groups = (key, having) if having else (self.adapter, groups)
        return self._view(preferred(key, groups))

    def _view(self, group: Group) -> GroupView:
        """The same object each time, so that views can be compared by identity."""
        view = self._seen.get(group.name)
        if view is None:
            view = self._seen[group.name] = self._see(group)
        return view


def split_by_standing(
    groups: Iterable[Group], model: str, now: float, avoid: str, weights: str
) -> tuple[dict[str, Group], dict[str, str]]:
    """The groups of a model that may take requests, and the states of the others; see `Fleet.view`."""
    ready: dict[str, Group] = {}
    doubtful: dict[str, Group] = {}
    away: dict[str, str] = {}
    for group in groups:
        if group.heartbeat.model.name != model:
            continue
        standing = group.standing(now)
        if standing == "ready":
            ready[group.name] = group
            continue
        away[group.name] = str(standing)
        if standing == "tripped" and not group.breaker.opened_by_ends:
            doubtful[group.name] = group
    if doubtful and not ready:
        ready = doubtful
        for name in doubtful:
            del away[name]
    if weights and any(group.heartbeat.model.fingerprint == weights for group in ready.values()):
        others = [name for name, one in ready.items() if one.heartbeat.model.fingerprint != weights]
        for name in others:
            del ready[name]
            away[name] = "other_weights"
    if len(ready) > 1 and avoid in ready:
        del ready[avoid]
        away[avoid] = "avoided"
    return ready, away
