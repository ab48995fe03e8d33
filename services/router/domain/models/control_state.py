"""What the controller decides on, and what it decides. Times are in seconds, memory in bytes."""

from dataclasses import dataclass, field
from typing import Literal

from shared.messages import OfferedModel

LoadReason = Literal["demand", "wish", "least", "queue"]
StopReason = Literal["idle", "wish", "evicted", "rotated", "surplus"]
ResizeReason = Literal["wanted", "budget", "free"]


@dataclass(frozen=True, slots=True)
class KVState:
    """The KV cache of a group, which may be limited; `charged_bytes` of the group count the limit.

    Attributes:
        limit_bytes: What it may take, as was measured.
        most_bytes: All of it; 0: it keeps its size.
        least_bytes: The model's minimum.
        needed_bytes: What requests that run there hold and need soon.
        freeing_bytes: Above the limit that was just commanded; it counts until it is measured to be free.
        age_s: Since the limit was changed, or since the group's start.
    """

    limit_bytes: int = 0
    most_bytes: int = 0
    least_bytes: int = 0
    needed_bytes: int = 0
    freeing_bytes: int = 0
    age_s: float = 0.0


FIXED = KVState()


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group whose processes a host runs, with what its heartbeats say.

    A group that is gone, or whose load has failed, is no longer listed. A command that was sent counts as
    carried out until a report says otherwise: a group that was told to stop is `stopping`, and one that was
    told to start is listed with the bytes that its offer names.

    Attributes:
        charged_bytes: Its memory, as in `HostedGroup`; while it stops, until its processes are gone.
        stopping: It takes nothing new, and its processes end.
        ready: Its heartbeats say that it takes requests.
        busy: Requests that it runs and lets wait, with those that routers have sent it since.
        waiting: Of these, requests that wait. Another group is started while all groups of a model have some,
            so this is the fewest of the last second: a burst that ends at once has none.
        idle_s: Since it had a request, or was ready for the first time; 0 while it is busy.
        ready_s: Since it was ready for the first time; 0: it was not yet.
        load_s: How long it took until then.
        served: It has had a request since its start.
        kv: What its KV cache takes.
    """

    name: str
    model: str
    charged_bytes: int
    stopping: bool = False
    ready: bool = False
    busy: int = 0
    waiting: int = 0
    idle_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0
    served: bool = False
    kv: KVState = FIXED

    @property
    def starting(self) -> bool:
        """Whether its processes start; a group that is away after it was ready does not."""
        return not (self.stopping or self.ready or self.ready_s)


@dataclass(frozen=True, slots=True)
class HostState:
    """A host: its budget, what it offers, and what runs there.

    Groups of models that it does not offer count for its memory, and are left alone.
    """

    name: str
    budget_bytes: int
    offers: tuple[OfferedModel, ...]
    groups: tuple[GroupState, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that wait for a model of which no group takes requests, at all routers.

    Attributes:
        waited_s: For how long some request has waited for the model without a break. It is not the age of one
            request: callers give up, and others come. It begins anew after a load that failed, or else a
            model that cannot be loaded would come before all others again and again.
    """

    requests: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class ModelFleet:
    """All hosts, and the demand by model (by its name, not by an alias)."""

    hosts: tuple[HostState, ...]
    demand: dict[str, Demand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """Start one more group of a model on a host."""

    host: str
    model: str
    reason: LoadReason


@dataclass(frozen=True, slots=True)
class Stop:
    """End a group of a host; `wanted_by` is the model that needs its memory, if one does."""

    host: str
    group: str
    reason: StopReason
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """Change what the KV cache of a group may take; `wanted_by` is the model that needs the memory."""

    host: str
    group: str
    kv_bytes: int
    reason: ResizeReason
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A model cannot be loaded anywhere, whatever ends: why, as a sentence for callers."""

    model: str
    why: str


Command = Load | Stop | Resize
Action = Command | Refused
