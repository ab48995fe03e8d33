"""A host as it will be once what is decided so far has happened. Pure.

Memory is counted twice: `free_bytes` is free now, `coming_bytes` will be free when all groups that stop have
ended, less what is reserved for models that wait for it. A load needs both.
"""

from collections.abc import Collection, Sequence

from services.router.domain.models.control_state import (
    GroupState,
    HostState,
    Load,
    LoadReason,
    Resize,
    Stop,
    StopReason,
)


class HostPlan:
    """A host's groups and memory during one decision.

    Attributes:
        loading: The model of a group that this decision starts.
        starting: True if a group starts, or will: no other one may start meanwhile.
        awaited: True if a model waits for memory of this host, or for the group that starts there.
    """

    def __init__(self, host: HostState) -> None:
        self.name = host.name
        self.budget_bytes = host.budget_bytes
        self.offers = {
            offer.card.name: offer for offer in sorted(host.offers, key=lambda offer: offer.card.name)
        }
        self._groups = sorted(host.groups, key=lambda group: group.name)
        self._stopping = {group.name for group in self._groups if group.stopping}
        self._running: dict[str, list[GroupState]] = {}
        for group in self._groups:
            if not group.stopping:
                self._running.setdefault(group.model, []).append(group)
        self.starting = any(group.starting for group in self._groups)
        self.loading = ""
        self.awaited = False
        self._charged_bytes = sum(group.charged_bytes for group in self._groups)
        self._freeing = {group.name: group.kv.freeing_bytes for group in self._groups}
        self._reserved_bytes = 0

    @property
    def running(self) -> list[GroupState]:
        """Groups that do not stop; those that only start are among them."""
        return [group for groups in self._running.values() for group in groups]

    def running_of(self, model: str) -> Sequence[GroupState]:
        """Groups of a model that do not stop, by name."""
        return self._running.get(model, [])

    def excess(self, model: str) -> int:
        """Number of groups of a model that may be stopped without an operator's wish.

        One group of a pinned model stays, as its least number of groups does.
        """
        offer = self.offers.get(model)
        if offer is None:
            return 0
        return max(0, len(self.running_of(model)) - max(offer.least_groups, int(offer.pinned)))

    def need_bytes(self, model: str) -> int:
        """Memory that one more group of a model needs."""
        offer = self.offers[model]
        return offer.next_bytes if self.running_of(model) else offer.first_bytes

    @property
    def free_bytes(self) -> int:
        """Memory that is free now."""
        return self.budget_bytes - self._charged_bytes

    @property
    def coming_bytes(self) -> int:
        """Memory that is free when groups that stop have ended, less reserved memory; may be negative."""
        return self.coming_after(())

    @property
    def is_ending(self) -> bool:
        """Whether a group ends, so that what it leaves is not known yet."""
        return bool(self._stopping)

    def coming_after(self, victims: Collection[GroupState]) -> int:
        """`coming_bytes` if these groups are stopped, too."""
        ending = self._stopping.union(group.name for group in victims)
        freed = sum(count for name, count in self._freeing.items() if name not in ending)
        return self.free_bytes + freed + self._ended_bytes(ending) - self._reserved_bytes

    def kept_bytes(self) -> int:
        """Memory of groups that are never stopped for other models: pinned, or needed as the least number.

        Their caches count with what they cannot give up.
        """
        kept = 0
        for model, groups in self._running.items():
            charges = sorted(_full_bytes(group) - _yielding_bytes(group) for group in groups)
            kept += sum(charges[self.excess(model) :])  # as in `_ended_bytes`
        return kept

    def largest_room(self) -> int:
        """The most memory that a model can ever get here while pinned models and least groups run."""
        return self.budget_bytes - self.kept_bytes()

    def load(self, model: str, reason: LoadReason) -> Load:
        """Starts a group; its memory counts from now on."""
        self._charged_bytes += self.need_bytes(model)
        self.starting = True
        self.loading = model
        return Load(self.name, model, reason)

    def stop(self, group: GroupState, reason: StopReason, wanted_by: str = "") -> Stop:
        """Stops a group; its memory counts until it has ended."""
        self._stopping.add(group.name)
        self._running[group.model] = [one for one in self._running[group.model] if one is not group]
        return Stop(self.name, group.name, reason, wanted_by)

    def kv_limit(self, group: GroupState) -> int:
        """What a group's KV cache may take after what was decided so far."""
        return group.kv.limit_bytes - self._freeing[group.name]

    def resize(self, group: GroupState, kv_bytes: int, wanted_by: str = "") -> Resize:
        """Changes what a group's KV cache may take; more counts from now on, less when it is measured."""
        less = self.kv_limit(group) - kv_bytes
        if less < 0:
            self._charged_bytes -= less
            return Resize(self.name, group.name, kv_bytes, "free")
        self._freeing[group.name] += less
        return Resize(self.name, group.name, kv_bytes, "wanted" if wanted_by else "budget", wanted_by)

    def reserve(self, model: str) -> None:
        """Keeps memory that is or will be free for a model that waits for it."""
        self._reserved_bytes += self.need_bytes(model)
        self.awaited = True

    def _ended_bytes(self, ending: Collection[str]) -> int:
        """Memory that is free after these groups have ended.

        Groups of a model share its weights, which stay as long as one of them runs and are then counted with
        that one. So the groups with the largest charges count as those that stay; what a smaller cache saves
        is saved where the cache is.
        """
        total = 0
        for model in {group.model for group in self._groups if group.name in ending}:
            groups = [group for group in self._groups if group.model == model]
            ended = [group for group in groups if group.name in ending]
            total += sum(sorted(_full_bytes(group) for group in groups)[: len(ended)])
            total -= sum(_saved_bytes(group) for group in ended)
        return total


def _saved_bytes(group: GroupState) -> int:
    """What a limit of its KV cache saves."""
    return group.kv.most_bytes - group.kv.limit_bytes


def _full_bytes(group: GroupState) -> int:
    """What a group would count for without a limit."""
    return group.charged_bytes + _saved_bytes(group)


def _yielding_bytes(group: GroupState) -> int:
    """What the largest KV cache of a group could give up."""
    return group.kv.most_bytes - group.kv.least_bytes if group.kv.most_bytes else 0
