"""What the controller decides on, and what it decides. Times are in seconds, memory in bytes."""

from dataclasses import dataclass, field
from typing import Literal

from shared.messages import OfferedModel

LoadReason = Literal["demand", "wish", "least", "queue"]
StopReason = Literal["idle", "wish", "evicted", "rotated", "surplus"]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group whose processes a host runs, with what its heartbeats say.

    Attributes:
        stopping: It takes nothing new, and its processes end.
        ready: Its heartbeats say that it takes requests.
        busy: Requests that it runs and lets wait, with those that routers have sent it since.
        waiting: Of these, requests that wait.
        idle_s: Since it had a request, or was ready for the first time; 0 while it is busy.
        ready_s: Since it was ready for the first time; 0: it was not yet.
        load_s: How long it took until then.
        served: It has had a request since its start.
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


@dataclass(frozen=True, slots=True)
class HostState:
    """A host: its budget, what it offers, and what runs there."""

    name: str
    budget_bytes: int
    offers: tuple[OfferedModel, ...]
    groups: tuple[GroupState, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that wait for a model of which no group takes requests, at all routers.

    Attributes:
        waited_s: The longest wait among them.
    """

    requests: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class ModelFleet:
    """All hosts, and the demand by model."""

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
class Refused:
    """A model cannot be loaded anywhere, whatever ends: why, as a sentence for callers."""

    model: str
    why: str


Action = Load | Stop | Refused
