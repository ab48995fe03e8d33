"""The view of a fleet that makes a group's view when somebody looks at it.

Most decisions look at one group or two; to view all of a thousand groups takes longer than to decide.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from services.router.domain.decision import FleetView, GroupView
from services.router.domain.group import Group
from services.router.domain.rendezvous import preferred


class LiveView(FleetView):
    """Good until the fleet changes: make a new one for each decision.

    groups: those that are ready, by name. see: the view of one of them.
    """

    def __init__(
        self,
        model: str,
        groups: Mapping[str, Group],
        see: Callable[[Group], GroupView],
        away: Mapping[str, str],
        models: Sequence[str],
    ) -> None:
        super().__init__(model, away=away, models=models)
        self._groups = groups
        self._see = see
        self._seen: dict[str, GroupView] = {}

    @cached_property
    def ready(self) -> tuple[GroupView, ...]:
        """See `FleetView.ready`."""
        return tuple(self._view(self._groups[name]) for name in sorted(self._groups))

    def find(self, name: str) -> GroupView | None:
        """See `FleetView.find`."""
        group = self._groups.get(name)
        return self._view(group) if group is not None else None

    def home(self, key: str) -> GroupView | None:
        """See `FleetView.home`."""
        return self._view(preferred(key, self._groups.values())) if self._groups else None

    def _view(self, group: Group) -> GroupView:
        """The same object each time, so that views can be compared by identity."""
        view = self._seen.get(group.name)
        if view is None:
            view = self._seen[group.name] = self._see(group)
        return view
