"""An index of the KV caches of all groups, made of their events. Pure: `follower.py` feeds it."""

from collections.abc import Iterator, Mapping

from shared.client.kv_events.group_view import GroupKVView, WantedCall
from shared.messages import KVEvents, KVFollowed, KVReplayed, KVSnapshotPage


class KVEventIndex:
    """Which blocks each group has in memory, as far as its events say.

    It follows every group with some delay and claims no block of an epoch that is over. While an event is
    missing, blocks that have left may still be claimed; `is_current` says so.

    Attributes:
        groups: What each group last said of itself.
    """

    def __init__(self) -> None:
        self.groups: dict[str, KVFollowed] = {}
        self._views: dict[str, GroupKVView] = {}

    def names(self, group: str) -> frozenset[bytes]:
        """Returns the blocks of a group.

        Args:
            group: Its name; one that is not known has none.
        """
        view = self._views.get(group)
        return frozenset() if view is None else frozenset(view.names)

    def find(self, names: list[bytes]) -> dict[str, int]:
        """Returns how many leading blocks of a prompt each group has; groups without any are left out.

        Args:
            names: Of the prompt's blocks, from the first on (`block_names`).
        """
        found = {group: view.count_leading(names) for group, view in self._views.items()}
        return {group: count for group, count in found.items() if count}

    def is_current(self, group: str) -> bool:
        """Returns whether the index has every event of which it has heard.

        Args:
            group: Its name.
        """
        view = self._views.get(group)
        return view is not None and view.is_current

    def is_described(self, group: str) -> bool:
        """Returns whether `groups` has what the group said of itself in its present epoch.

        Args:
            group: Its name.
        """
        view, said = self._views.get(group), self.groups.get(group)
        return view is not None and said is not None and said.epoch == view.epoch

    def changes(self) -> dict[str, int]:
        """Returns how often each group changed its epoch; to be taken before `KVFollow` is sent."""
        return {group: view.changes for group, view in self._views.items()}

    def wanted(self) -> Iterator[WantedCall]:
        """Yields the calls to make next, one at most for each group."""
        for view in self._views.values():
            wanted = view.wanted()
            if wanted is not None:
                yield wanted

    def take_events(self, events: KVEvents) -> None:
        """Takes an event from the bus.

        Args:
            events: In any order, once or more often.
        """
        self._view(events.group).take_events(events)

    def take_followed(self, followed: KVFollowed, changes: Mapping[str, int]) -> None:
        """Takes a group's answer to `KVFollow`.

        Args:
            followed: The answer.
            changes: Those from before the question was sent.
        """
        view, before = self._view(followed.group), changes.get(followed.group, 0)
        if view.take_position(followed.epoch, followed.seq, before):
            self.groups[followed.group] = followed

    def take_answer(self, wanted: WantedCall, answer: KVReplayed | KVSnapshotPage) -> None:
        """Takes the answer to a call.

        Args:
            wanted: The call.
            answer: Of the kind that it asks for.
        """
        view = self._view(wanted.group)
        if isinstance(answer, KVReplayed):
            view.take_replay(answer, wanted.changes)
        else:
            view.take_page(answer, wanted.changes)

    def forget(self, group: str) -> None:
        """Forgets a group that does not answer any more.

        Args:
            group: Its name.
        """
        self._views.pop(group, None)
        self.groups.pop(group, None)

    def _view(self, group: str) -> GroupKVView:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = GroupKVView(group)
        return view
