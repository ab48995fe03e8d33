"""Hosts, groups and requests in virtual time, as agents, leaders and routers would have them."""

from dataclasses import dataclass, field

from services.router.domain.models.control_state import GroupState, HostState, KVState
from shared.messages.models import Wish
from tests.kits.router.models.states import offer

EXIT_S = 0.5  # a group's processes end so long after its last request
FREED_S = 1.0  # so long after a cache got smaller its memory is measured to be free


@dataclass(slots=True)
class SimulatedModel:
    """What a models file says of a model, and how long its groups take to load.

    Attributes:
        kv: The largest KV cache of a group, which is part of its bytes; each request that runs holds one.
        kv_least: The smallest.
    """

    name: str
    first_bytes: int
    next_bytes: int
    load_s: float
    priority: int = 0
    pinned: bool = False
    least: int = 0
    most: int = 1
    sleep_s: float = 0.0
    slots: int = 2
    kv: int = 0
    kv_least: int = 0

    def bytes_of(self, groups: int) -> int:
        """What so many groups take on a host."""
        return self.first_bytes + (groups - 1) * self.next_bytes if groups else 0

    @property
    def kept(self) -> int:
        """Groups that stay."""
        return max(self.least, int(self.pinned))


@dataclass(slots=True)
class SimulatedGroup:
    """A group's processes.

    Attributes:
        first: It is charged with what the model's groups share.
        away_until: Its leader has died and starts again.
        retry_s: Its load fails, and may be tried again after so long; None: it does not fail.
        running: Ends of requests.
        queue: Durations of requests.
        kv_limit: What its cache may take; `kv_measured` is what it counts for.
        kv_changed_at: When the limit was changed.
    """

    name: str
    model: SimulatedModel
    started_at: float
    first: bool
    retry_s: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    away_until: float = 0.0
    away: bool = False
    stopping: bool = False
    served: bool = False
    used_at: float = 0.0
    running: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    kv_limit: int = -1
    kv_measured: int = -1
    kv_changed_at: float = 0.0

    def __post_init__(self) -> None:
        self.kv_limit = self.kv_measured = self.model.kv
        self.kv_changed_at = self.started_at

    @property
    def kv_needed(self) -> int:
        """What running requests hold."""
        return min(len(self.running), self.kv_limit)

    @property
    def kv_saved(self) -> int:
        """What a limit saves, once it is measured."""
        return self.model.kv - self.kv_measured

    @property
    def busy(self) -> int:
        return len(self.running) + len(self.queue)

    @property
    def takes(self) -> bool:
        return self.ready_at is not None and not (self.stopping or self.away)

    @property
    def starting(self) -> bool:
        return self.ready_at is None and not self.stopping

    @property
    def has_kv(self) -> bool:
        """Whether one more request has room in its cache."""
        return not self.model.kv or len(self.running) < self.kv_limit

    def age(self, now: float) -> float:
        """Since it was ready."""
        return 0.0 if self.ready_at is None else now - self.ready_at

    def run(self, now: float) -> None:
        """Ends requests, and starts others in free slots."""
        self.away = now < self.away_until
        if self.kv_measured != self.kv_limit and now >= self.kv_changed_at + FREED_S:
            self.kv_measured = self.kv_limit
        for end in sorted(self.running):
            if end <= now:
                self.running.remove(end)
                self.used_at = now
                if self.queue and self.has_kv:
                    self.running.append(max(end, now) + self.queue.pop(0))
        while self.queue and len(self.running) < self.model.slots and self.has_kv:
            self.running.append(now + self.queue.pop(0))
        if self.stopping and not self.busy and self.ended_at is None:
            self.ended_at = now + EXIT_S

    def state(self, now: float, charged_bytes: int) -> GroupState:
        return GroupState(
            self.name,
            self.model.name,
            charged_bytes,
            stopping=self.stopping,
            ready=self.takes,
            busy=self.busy,
            waiting=len(self.queue),
            idle_s=0.0 if self.busy or self.ready_at is None else now - self.used_at,
            ready_s=self.age(now),
            load_s=0.0 if self.ready_at is None else self.ready_at - self.started_at,
            served=self.served,
            kv=KVState(
                limit_bytes=self.kv_measured,
                most_bytes=self.model.kv,
                least_bytes=self.model.kv_least,
                needed_bytes=self.kv_needed,
                freeing_bytes=self.kv_measured - self.kv_limit,
                age_s=now - self.kv_changed_at,
            ),
        )


@dataclass(slots=True)
class SimulatedHost:
    """A host with the groups that run there, and what its agent remembers."""

    name: str
    budget_bytes: int
    models: list[SimulatedModel]
    groups: list[SimulatedGroup] = field(default_factory=list)
    wishes: dict[str, Wish] = field(default_factory=dict)
    retry_at: dict[str, float] = field(default_factory=dict)

    def running(self, model: str) -> list[SimulatedGroup]:
        return [group for group in self.groups if group.model.name == model and not group.stopping]

    def charge(self, group: SimulatedGroup) -> int:
        return (group.model.first_bytes if group.first else group.model.next_bytes) - group.kv_saved

    @property
    def charged_bytes(self) -> int:
        return sum(self.charge(group) for group in self.groups)

    def offers_model(self, model: str) -> bool:
        return any(one.name == model for one in self.models)

    def remove(self, group: SimulatedGroup) -> None:
        """The processes are gone; weights that other groups map are counted with the oldest of them."""
        self.groups.remove(group)
        left = [one for one in self.groups if one.model is group.model]
        if left and not any(one.first for one in left):
            left[0].first = True

    def note_wishes(self) -> None:
        """A wish to load holds until a group is ready, one to sleep until none runs."""
        for model, wish in list(self.wishes.items()):
            groups = self.running(model)
            loaded = wish == "load" and any(group.takes for group in groups)
            asleep = wish == "sleep" and not groups
            if loaded or asleep:
                del self.wishes[model]

    def state(self, now: float) -> HostState:
        offers = [
            offer(
                model.name,
                model.first_bytes,
                next_bytes=model.next_bytes,
                load_s=model.load_s,
                least=model.least,
                most=model.most,
                priority=model.priority,
                pinned=model.pinned,
                sleep_s=model.sleep_s,
                wish=self.wishes.get(model.name, ""),
                retry_s=max(0.0, self.retry_at.get(model.name, 0.0) - now),
            )
            for model in self.models
        ]
        groups = tuple(group.state(now, self.charge(group)) for group in self.groups)
        return HostState(self.name, self.budget_bytes, tuple(offers), groups)
