"""What services say about themselves: heartbeats of groups, models on offer, each service's status."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shared.messages.base import SMALL, GroupName, Milliseconds, ModelName, Wire, check_depth

State = Literal["starting", "ready", "draining", "recovering", "failed", "stopped"]
DownReason = Literal["disconnected", "silent", "no_responders"]


class Load(Wire, frozen=True, kw_only=True):
    """How busy a group is. Queue places are counted in requests, blocks in KV blocks."""

    running: int = 0
    waiting: int = 0
    max_running: int = 0
    max_waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    queued_tokens: Annotated[
        int, msgspec.Meta(description="Prompt tokens not yet computed, of all requests.")
    ] = 0
    tokens_per_s: Annotated[float, msgspec.Meta(description="Prefill and decode together, lately.")] = 0.0


class KVRates(Wire, frozen=True, kw_only=True):
    """What a group has measured of its two ways to have a session's KV; 0: not measured yet.

    recompute_tokens_per_s: prefill of one sequence. fetch_tokens_per_s, fetch_s: tokens a second from the
    store, and what a fetch takes on top. store: whether the group reads and writes the store at present.
    """

    recompute_tokens_per_s: float = 0.0
    fetch_tokens_per_s: float = 0.0
    fetch_s: float = 0.0
    store: bool = False


class ModelCard(Wire, frozen=True, kw_only=True):
    """A served model, as callers see it."""

    name: ModelName
    context_length: int
    fingerprint: Annotated[
        str, msgspec.Meta(description="Names the weights; groups with the same one are alike.")
    ] = ""
    created_s: int = 0
    chat: Annotated[bool, msgspec.Meta(description="It has a chat template.")] = True


class Heartbeat(Wire, frozen=True, kw_only=True):
    """Sent by a leader every `interval_ms`, on a connection of its own, also while nothing changes.

    `instance_id` changes with each start of the leader; `seq` counts the heartbeats of an instance.
    `weight` is the share of sessions the group is to get. `accepted_total` counts the `Work` messages that
    this instance has taken, copies and refused ones included, so that routers know what is still on its way.
    `ended_total` counts the requests that ended as they should, cancelled ones included, `broken_total` those
    that the group failed through a fault of its own.
    """

    group: GroupName
    instance_id: str
    seq: int
    interval_ms: Milliseconds
    state: State
    model: ModelCard
    load: Load
    tensor_parallel: int = 1
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    accepted_total: Annotated[int, msgspec.Meta(ge=0)] = 0
    kv: KVRates = KVRates()
    ended_total: Annotated[int, msgspec.Meta(ge=0)] = 0
    broken_total: Annotated[int, msgspec.Meta(ge=0)] = 0


class GroupDown(Wire, frozen=True, kw_only=True):
    """A router has given an instance of a group up: callers resume elsewhere what they have there.

    reason: the broker lost its connection, it was silent for some heartbeats, or nobody took its work.
    """

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    instance_id: str
    reason: DownReason
    router_id: str = ""


class ClaimGroup(Wire, frozen=True, kw_only=True):
    """A leader asks, before it takes work, whether another one has its group's name; silence allows it.

    claim_id: of this process, also where instance ids are set by hand. since_ms: when it began, in Unix
    milliseconds: of two that ask at the same moment the earlier one has the name, then the lower `claim_id`.
    """

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    instance_id: str
    claim_id: str
    host: str = ""
    since_ms: Milliseconds = 0


class GroupClaimed(Wire, frozen=True, kw_only=True):
    """Answer to `ClaimGroup` by the leader that has the name."""

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    instance_id: str
    host: str = ""
    state: State = "ready"


class DrainGroup(Wire, frozen=True, kw_only=True):
    """Asks a group's leader to take no new work, to let what runs end or move, and to exit.

    timeout_ms: how long requests may go on there before they move; 0: the group's own setting.
    """

    max_bytes: ClassVar[int] = SMALL
    timeout_ms: Milliseconds = 0


class Draining(Wire, frozen=True, kw_only=True):
    """Answer to `DrainGroup`, at once: the group drains, with so many requests in hand."""

    group: GroupName
    instance_id: str
    requests: int = 0
    timeout_ms: Milliseconds = 0


class ListModels(Wire, frozen=True, kw_only=True):
    """Asks any router for the models that it can route to."""

    max_bytes: ClassVar[int] = SMALL


class ModelList(Wire, frozen=True, kw_only=True):
    """The models with at least one group that is ready."""

    models: list[ModelCard]


class StatusQuery(Wire, frozen=True, kw_only=True):
    """Asks every service instance for its status; each answers on the reply subject."""

    max_bytes: ClassVar[int] = SMALL


class ServiceStatus(Wire, frozen=True, kw_only=True):
    """One service instance. `detail` is the service's own: fleet, ranks, queues, session counts."""

    service: str
    instance_id: str
    state: State
    version: str
    uptime_s: float
    pid: int
    detail: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_depth(self.detail)
