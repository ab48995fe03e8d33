"""A view of the fleet that makes each group's view when it is read.

Most decisions need one group or two. Making the views of a thousand groups takes longer than to decide.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from services.router.domain.decision import UNABLE, FleetView, GroupView, Unable
from services.router.domain.groups.group import Group
from services.router.domain.rendezvous import preferred
from shared.guests.needs import is_guest, lack_of

RESTART_S = 30.0  # after which a group that has ended cleanly is not expected back where only guests are left
Needs = Callable[[], Mapping[str, str]]  # of a request, with the fields that ask for it


def no_needs() -> Mapping[str, str]:
    """The needs of a request that any group can serve."""
    return {}


class Wanted(NamedTuple):
    """What requests ask for: a model, and the fingerprint of an adapter; empty: none."""

    model: str
    adapter: str = ""


class LiveView(FleetView):
    """A view that is good until the fleet changes; make a new one for each decision."""

    def __init__(
        self,
        wanted: Wanted,
        standing: "Standings",
        see: Callable[[Group], GroupView],
        models: Sequence[str],
    ) -> None:
        super().__init__(
            wanted.model, away=standing.away, models=models, adapter=wanted.adapter, unable=standing.unable
        )
        self._groups = standing.ready
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


class Standings(NamedTuple):
    """The groups of a model that may take requests, and the states of the others; see `Fleet.view`.

    Attributes:
        unable: A guest that lacks something for the request; None: there is none.
    """

    ready: dict[str, Group]
    away: dict[str, str]
    unable: Unable | None = None


def split_by_standing(
    groups: Iterable[Group], model: str, now: float, avoid: str, weights: str, *, needs: Needs
) -> Standings:
    """Sorts the groups of a model; `needs` is called once, and only if one of them is a guest's."""
    ready: dict[str, Group] = {}
    doubtful: dict[str, Group] = {}
    away: dict[str, str] = {}
    needed: Mapping[str, str] | None = None
    unable: Unable | None = None
    gone: list[str] = []
    for group in groups:
        if group.heartbeat.model.name != model:
            continue
        guest = group.heartbeat.guest
        if guest is not None:
            needed = needs() if needed is None else needed
            if (lack := lack_of(guest.lacks, needed)) is not None:
                away[group.name] = UNABLE
                unable = Unable(lack, guest.name, "continuation" in needed)
                continue
        standing = group.standing(now)
        if standing == "ready":
            ready[group.name] = group
            continue
        away[group.name] = str(standing)
        if standing == "stopped" and now - group.heard_at > RESTART_S:
            gone.append(group.name)
        if standing == "tripped" and not group.breaker.opened_by_ends:
            doubtful[group.name] = group
    for name in gone if unable is not None else ():
        del away[name]
    if doubtful and not ready:
        ready = doubtful
        for name in doubtful:
            del away[name]
    for name in _with_other_weights(ready, avoid, weights) if weights else ():
        del ready[name]
        away[name] = "other_weights"
    if len(ready) > 1 and avoid in ready:
        del ready[avoid]
        away[avoid] = "avoided"
    return Standings(ready, away, unable)


def _with_other_weights(ready: Mapping[str, Group], avoid: str, weights: str) -> Collection[str]:
    """The groups that are left out since others have the weights that began an answer."""
    equal = {name for name, group in ready.items() if group.heartbeat.model.fingerprint == weights}
    if is_guest(weights):  # the one that lost the stream may still be ready
        equal.discard(avoid)
    return ready.keys() - equal if equal else ()
