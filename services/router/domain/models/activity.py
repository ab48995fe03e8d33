"""Makes the controller's view of the hosts, from their reports, the groups' heartbeats and the demand.

Pure; `now` is monotonic seconds. Since when a group has had no request is in no message, so it is kept here.
A router that has just started counts from when it first heard the group, which is the careful side.
"""

from collections import deque
from dataclasses import dataclass, field

from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.group import Group
from services.router.domain.models.control_state import FIXED, GroupState, HostState, KVState, ModelFleet
from services.router.domain.models.demand import DemandBook
from services.router.domain.models.offered import HostView, OfferedModels
from shared.messages import HostedGroup

_QUEUE_S = 1.0  # so long a queue lasts before it counts


@dataclass(slots=True)
class _Use:
    """What is remembered of one instance of a group.

    Attributes:
        accepted_total: Count of its last heartbeat, to notice requests that came and ended between two views.
        busy_at: When it was last seen busy, or not ready yet.
        ready_at: When it was first seen ready; None before that.
        queues: Requests that waited, at each view of the last second and the one before.
    """

    instance_id: str
    accepted_total: int
    busy_at: float
    ready_at: float | None = None
    queues: deque[tuple[float, int]] = field(default_factory=deque)

    def fewest_waiting(self, waiting: int, now: float) -> int:
        """Returns the fewest requests that waited in the last second; 0 if it was not seen for so long."""
        queues = self.queues
        queues.append((now, waiting))
        while len(queues) > 1 and now - queues[1][0] >= _QUEUE_S:
            queues.popleft()
        return min(queue for _, queue in queues) if now - queues[0][0] >= _QUEUE_S else 0


class GroupActivity:
    """Remembers when groups were last busy. `view` is to be called a few times a second."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def view(self, offered: OfferedModels, fleet: Fleet, demand: DemandBook, now: float) -> ModelFleet:
        """Returns what `decide` needs."""
        hosts = tuple(self._host(host, fleet, now) for host in offered.hosts())
        named = {group.name for host in hosts for group in host.groups}
        for gone in self._uses.keys() - named:
            del self._uses[gone]
        return ModelFleet(hosts, demand.demand(now))

    def _host(self, host: HostView, fleet: Fleet, now: float) -> HostState:
        report = host.report
        groups = tuple(self._group(hosted, host, fleet, now) for hosted in report.groups)
        return HostState(report.host, report.budget_bytes, tuple(report.models), groups)

    def _group(self, hosted: HostedGroup, host: HostView, fleet: Fleet, now: float) -> GroupState:
        group = group_of(hosted, fleet)
        stopping = hosted.phase == "stopping" or (group is not None and group.heartbeat.state == "draining")
        ready = not stopping and group is not None and group.standing(now) == "ready"
        view = group.view(now) if group is not None and not group.lost else None
        busy, waiting = (view.running + view.waiting, view.waiting) if view is not None else (0, 0)
        use = self._use(hosted, group, now, busy=busy > 0)
        idle_s = ready_s = 0.0
        if use is not None:
            waiting, idle_s = use.fewest_waiting(waiting, now), now - use.busy_at
            ready_s = now - use.ready_at if use.ready_at is not None else 0.0
        if hosted.load_ms:
            ready_s = max(ready_s, (hosted.age_ms - hosted.load_ms) / 1000 + now - host.heard_at)
        return GroupState(
            name=hosted.group,
            model=hosted.model,
            charged_bytes=hosted.charged_bytes,
            stopping=stopping,
            ready=ready,
            busy=busy,
            waiting=waiting,
            idle_s=idle_s,
            ready_s=ready_s,
            load_s=hosted.load_ms / 1000,
            served=group is not None and group.heartbeat.accepted_total > 0,
            kv=_kv_of(hosted, now - host.heard_at),
        )

    def _use(self, hosted: HostedGroup, group: Group | None, now: float, *, busy: bool) -> _Use | None:
        """What is remembered of the group, as of now; None while no heartbeat of it was heard."""
        if group is None:
            self._uses.pop(hosted.group, None)
            return None
        heartbeat = group.heartbeat
        use = self._uses.get(hosted.group)
        if use is None or use.instance_id != heartbeat.instance_id:
            use = _Use(heartbeat.instance_id, heartbeat.accepted_total, now)
            self._uses[hosted.group] = use
        if use.ready_at is None and heartbeat.state == "ready":
            use.ready_at = use.busy_at = now
        if busy or use.ready_at is None or heartbeat.accepted_total != use.accepted_total:
            use.busy_at, use.accepted_total = now, heartbeat.accepted_total
        return use


def group_of(hosted: HostedGroup, fleet: Fleet) -> Group | None:
    """The group of a host as the fleet knows it; None while no heartbeat of it was heard."""
    group = fleet.find(hosted.group)
    return group if group is not None and group.heartbeat.model.name == hosted.model else None


def _kv_of(hosted: HostedGroup, since_s: float) -> KVState:
    if not hosted.kv_most_bytes:
        return FIXED
    return KVState(
        limit_bytes=hosted.kv_bytes,
        most_bytes=hosted.kv_most_bytes,
        least_bytes=hosted.kv_least_bytes,
        needed_bytes=hosted.kv_needed_bytes,
        age_s=hosted.kv_age_ms / 1000 + since_s,
    )
