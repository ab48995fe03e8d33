"""Heartbeats of groups, the models they serve, losses and drains of groups, statuses of services, leases."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shared.messages.adapters import AdapterFingerprint
from shared.messages.base import SMALL, GroupName, Milliseconds, ModelName, Tenant, Wire, check_depth
from shared.messages.generate import SamplingDefaults

State = Literal["starting", "ready", "draining", "recovering", "failed", "stopped"]
DownReason = Literal["disconnected", "silent", "no_responders", "stopped"]


class Load(Wire, frozen=True, kw_only=True):
    """The load of a group. Queue slots are counted in requests, blocks in KV blocks."""

    running: int = 0
    waiting: int = 0
    max_running: int = 0
    max_waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    queued_tokens: Annotated[
        int, msgspec.Meta(description="Prompt tokens of all requests that are not computed yet.")
    ] = 0
    tokens_per_s: Annotated[float, msgspec.Meta(description="Prefill and decode together, of late.")] = 0.0


class KVRates(Wire, frozen=True, kw_only=True):
    """Measured rates of the two ways to get a session's KV; 0: not measured yet.

    Attributes:
        recompute_tokens_per_s: Tokens a second that prefill of one sequence computes.
        fetch_tokens_per_s: Tokens a second that a fetch reads from the store.
        fetch_s: Seconds that a fetch takes besides.
        store: Whether the group reads and writes the store at present.
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
        str,
        msgspec.Meta(
            description="Identifies the weights; groups with equal fingerprints serve the same weights."
        ),
    ] = ""
    created_s: int = 0
    chat: Annotated[bool, msgspec.Meta(description="It has a chat template.")] = True
    sampling: Annotated[
        SamplingDefaults | None,
        msgspec.Meta(description="What it samples with if a request says nothing. None: an older leader."),
    ] = None
    tenants: Annotated[
        list[Tenant],
        msgspec.Meta(description="Only these may use it, and others do not see it. Empty: all may."),
    ] = []

    def admits(self, tenant: str) -> bool:
        """Returns whether a tenant may use it."""
        return not self.tenants or tenant in self.tenants


class Vitals(Wire, frozen=True, kw_only=True):
    """What the process that sends the heartbeats of a leader observes of the leader and of the machine.

    Attributes:
        leader: `running`; `frozen`: stopped by a signal or a debugger; `hung`: its event loop stands still,
            and not for want of a core; `ended`: there is no such process any more. Empty: the leader sends
            this heartbeat itself. Other values mean `running`. One that says `frozen`, `hung` or `ended` is
            the last one until the leader goes on.
        described_ms: Age of the state and the load in this heartbeat, since the leader's event loop set them.
        starved_ms: Of that time, how long a thread of the leader waited for a core.
        cpu_ms: Of that time, how long the leader's threads had cores, all threads together.
        late_ms: How much later than planned this heartbeat was sent.
        pressure: Share of the time of late in which a process of the machine waited for a core, from 0 to 1.
    """

    leader: str = "running"
    described_ms: Milliseconds = 0
    starved_ms: Milliseconds = 0
    cpu_ms: Milliseconds = 0
    late_ms: Milliseconds = 0
    pressure: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class GuestCard(Wire, frozen=True, kw_only=True):
    """An engine of others behind a group; see docs/guests.md.

    Attributes:
        name: What it is, for people.
        lacks: What it cannot do, as `shared/guest_needs.py` and the guest port name it. Routers give it no
            request that needs one of these.
    """

    name: str
    lacks: list[str] = []


class Heartbeat(Wire, frozen=True, kw_only=True):
    """Sent for a leader every `interval_ms` on a separate connection, also while nothing changes.

    Attributes:
        instance_id: Changes with each start of the leader.
        seq: Grows with each heartbeat of an instance.
        weight: The share of sessions that the group gets.
        accepted_total: Counts `Work` messages that this instance has taken, copies and refused ones included,
            so that routers know what has not arrived yet.
        ended_total: Counts requests that the engine computed as it should: done ones, and those whose
            caller left, or was late, after the first token. Refused requests are in neither count.
        broken_total: Counts requests that the group failed by its own fault, and requests of the leader
            itself that failed after others had (decision 0063).
        vitals: Evidence on the leader; none from leaders that send their heartbeats themselves.
        adapters: Fingerprints of the adapters that are in its memory.
        guest: The engine of others that computes; None: an engine of ours, which can do everything.
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
    vitals: Vitals | None = None
    adapters: list[AdapterFingerprint] = []
    guest: GuestCard | None = None


class GroupDown(Wire, frozen=True, kw_only=True):
    """A router has given up an instance of a group. Callers resume its requests on other groups.

    Attributes:
        reason: The broker lost its connection, some heartbeats were missing, its work subject had no
            subscriber, or its last heartbeat said that it stops.
        cause: What a heartbeat said of the leader, as in `Vitals.leader`: `ended` (with the reason
            `disconnected`), `frozen` or `hung` (with `silent`). Empty: the loss was found without that.
    """

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    instance_id: str
    reason: DownReason
    router_id: str = ""
    cause: str = ""


class RouterAlive(Wire, frozen=True, kw_only=True):
    """Sent by a router once a second, so that the others know that it runs.

    The broker gives each request to one of them at random, so with their number a router knows about how
    many requests went to a group since its last heartbeat.

    Attributes:
        takes: Whether it takes requests; False: it is about to end.
        wanted: Requests that wait for a model of which no group takes requests, by model; 64 models at most.
    """

    max_bytes: ClassVar[int] = 16_384
    router_id: str
    takes: bool = True
    wanted: dict[ModelName, int] = {}


class ClaimGroup(Wire, frozen=True, kw_only=True):
    """A leader asks before it takes work whether another leader has its group's name. No answer means no.

    Attributes:
        claim_id: Of this process; unique also where instance ids are set by hand.
        since_ms: When it began, in Unix milliseconds. Of two leaders that ask at the same moment the earlier
            one gets the name, then the one with the lower `claim_id`.
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
    """Asks a group's leader to take no new work, to let running requests end or move, and to exit.

    Attributes:
        timeout_ms: How long requests may go on there before they move. 0: the setting of the group.
    """

    max_bytes: ClassVar[int] = SMALL
    timeout_ms: Milliseconds = 0


class Draining(Wire, frozen=True, kw_only=True):
    """Immediate answer to `DrainGroup`, with the number of running requests."""

    group: GroupName
    instance_id: str
    requests: int = 0
    timeout_ms: Milliseconds = 0


class StatusQuery(Wire, frozen=True, kw_only=True):
    """Asks every service instance for its status; each answers on the reply subject."""

    max_bytes: ClassVar[int] = SMALL


class ServiceStatus(Wire, frozen=True, kw_only=True):
    """Answer to `StatusQuery`. `detail` depends on the service: fleet, ranks, queues, counts of sessions."""

    service: str
    instance_id: str
    state: State
    version: str
    uptime_s: float
    pid: int
    detail: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_depth(self.detail)


class LeaseClaim(Wire, frozen=True, kw_only=True):
    """Asks the KV state service for a lease, or to prolong or give back the one that the holder has.

    Attributes:
        ttl_ms: For so long from now; 0: it is given back.
        heard_epoch: The highest that hosts have reported. A new one is higher, also if the store was emptied
            and its clock set back.
    """

    max_bytes: ClassVar[int] = SMALL
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z-]{1,32}\Z", description="What is leased.")]
    holder: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)]
    heard_epoch: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0


class LeaseHeld(Wire, frozen=True, kw_only=True):
    """Answer to `LeaseClaim`: who has the lease now.

    Attributes:
        epoch: Grows with each new holder, also over a loss of the store.
        ttl_ms: How long it lasts; 0: the lease is free.
    """

    holder: str
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    ttl_ms: Milliseconds = 0
