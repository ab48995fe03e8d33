"""Models that hosts offer, groups that run there, and the commands that start and stop groups.

A host's agent reports both; the controller in the routers decides, and commands the agents. A model of which
no group runs is offered all the same: a request for it waits until one does.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.messages.adapters import ListedAdapter
from shared.messages.base import SMALL, TENANT_OR_NONE, GroupName, Milliseconds, ModelName, Wire
from shared.messages.fleet import ModelCard

Phase = Literal["absent", "loading", "ready", "draining", "asleep", "failed"]
GroupPhase = Literal["starting", "running", "stopping"]
Wish = Literal["", "load", "sleep", "unload"]
HostName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z", description="A supervisor and what it runs."),
]
Bytes = Annotated[int, msgspec.Meta(ge=0, description="Bytes.")]


class HostedGroup(Wire, frozen=True, kw_only=True):
    """A group whose processes a host runs. Whether it takes requests is in its heartbeats.

    Attributes:
        phase: Of its processes: `starting` until it was ready for the first time.
        charged_bytes: What it counts for: its plan, or its measured memory (PSS) if that is more.
        age_ms: Since its start.
        load_ms: How long it took until it was ready; 0: it was not yet.
        kv_bytes: What its KV cache may take, once memory above it was measured to be free.
        kv_most_bytes: All of its KV cache; 0: it keeps its size, or is not known yet.
        kv_least_bytes: The limit goes no lower: the model's minimum.
        kv_needed_bytes: What requests that run there hold and need soon; nor does it go below this.
        kv_age_ms: Since the limit was changed, or since the start.
    """

    group: GroupName
    model: ModelName
    phase: GroupPhase
    charged_bytes: Bytes = 0
    age_ms: Milliseconds = 0
    load_ms: Milliseconds = 0
    kv_bytes: Bytes = 0
    kv_most_bytes: Bytes = 0
    kv_least_bytes: Bytes = 0
    kv_needed_bytes: Bytes = 0
    kv_age_ms: Milliseconds = 0


class OfferedModel(Wire, frozen=True, kw_only=True):
    """A model that a host can run.

    Attributes:
        card: Without a fingerprint.
        aliases: Its other names.
        first_bytes: Memory that a group needs while none of the model runs there, at its peak.
        next_bytes: Memory that one more group needs.
        load_ms: How long the last load took; 0: it was not loaded yet.
        least_groups: As many run at any time; they are never put to sleep for want of use.
        most_groups: No more are started.
        priority: Of two models that want memory, the one with the higher priority gets it.
        pinned: It is neither put to sleep nor evicted.
        sleep_ms: After so long without a request its groups end; 0: only when memory is wanted.
        local: Its files were found on the host, so that it can be loaded.
        wish: What an operator asked for: `load` until it is ready, `sleep` until no group runs, `unload`
            until a `load`.
        failure: Why its last load failed; empty: it did not.
        retry_ms: After a failure, until it may be tried again.
    """

    card: ModelCard
    aliases: list[ModelName] = []
    first_bytes: Bytes = 0
    next_bytes: Bytes = 0
    load_ms: Milliseconds = 0
    least_groups: Annotated[int, msgspec.Meta(ge=0)] = 0
    most_groups: Annotated[int, msgspec.Meta(ge=0)] = 1
    priority: int = 0
    pinned: bool = False
    sleep_ms: Milliseconds = 0
    local: bool = False
    wish: Wish = ""
    failure: str = ""
    retry_ms: Milliseconds = 0


class HostReport(Wire, frozen=True, kw_only=True):
    """Sent by a host's agent once a second, and when something has changed.

    Attributes:
        instance_id: Changes with each start of the supervisor.
        seq: Grows with each report of an instance.
        budget_bytes: Memory that all its groups may take together.
        epoch: The highest epoch of a controller that has commanded it.
    """

    host: HostName
    instance_id: str
    seq: int
    budget_bytes: Bytes
    models: list[OfferedModel]
    groups: list[HostedGroup] = []
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0


class StartGroup(Wire, frozen=True, kw_only=True):
    """Commands a host's agent to start one more group of a model.

    Attributes:
        running: Groups of the model that the controller has seen there, those that end included: with
            another number the agent refuses, so that no command is carried out twice.
        epoch: Of the controller's lease; the agent refuses one that is lower than it has heard.
        reason: For logs and `ryz models status`.
    """

    max_bytes: ClassVar[int] = SMALL
    model: ModelName
    running: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    reason: str = ""


class StopGroup(Wire, frozen=True, kw_only=True):
    """Commands a host's agent to end a group: it takes no new work, ends what it has, and is gone.

    Attributes:
        epoch: As in `StartGroup`.
        reason: As in `StartGroup`.
    """

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    reason: str = ""


class GroupCommanded(Wire, frozen=True, kw_only=True):
    """Immediate answer to `StartGroup` and `StopGroup`.

    Attributes:
        group: Which one starts or ends.
        refused: Why nothing is done; empty: it is done.
    """

    group: str = ""
    refused: str = ""


class LimitKV(Wire, frozen=True, kw_only=True):
    """Commands what the KV cache of a group may take: a host's agent, which tells the group's leader.

    Attributes:
        limit_bytes: On all ranks together; 0: all that it has.
        epoch: As in `StartGroup`; leaders ignore it.
    """

    max_bytes: ClassVar[int] = SMALL
    group: GroupName
    limit_bytes: Bytes = 0
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0
    reason: str = ""


class KVLimited(Wire, frozen=True, kw_only=True):
    """Immediate answer to `LimitKV`; memory above the limit comes back with the group's next step.

    Attributes:
        most_bytes: All of the cache; 0: the group gives no memory back, and has no limit.
        most_tokens: The same in tokens.
        least_bytes: Enough for the longest request.
        needed_bytes: What running requests hold and need soon. No limit is set below this and the least.
        refused: Why the agent does nothing; empty: it is done.
    """

    group: GroupName
    limit_bytes: Bytes = 0
    most_bytes: Bytes = 0
    most_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    least_bytes: Bytes = 0
    needed_bytes: Bytes = 0
    refused: str = ""


class ManageModel(Wire, frozen=True, kw_only=True):
    """An operator's wish for a model; every agent hears it, and those that offer the model answer.

    Attributes:
        action: `load` and `wake` start a group if none runs. `sleep` ends its groups as soon as they have
            nothing to do; the next request wakes it. `unload` ends them also while they work, which they
            finish first; requests are refused until a `load`. `scale` sets how many groups run. `remove`
            is `unload`, after which the model is offered no more.
        groups: For `scale`.
    """

    max_bytes: ClassVar[int] = SMALL
    model: ModelName
    action: Literal["load", "wake", "sleep", "unload", "scale", "remove"]
    groups: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


class PutModel(Wire, frozen=True, kw_only=True):
    """Has hosts offer one more model until their stacks end. Every agent hears it; those meant answer.

    An entry that is wrong, or whose files a host does not have, is answered by an `ErrorReply`
    (`invalid_request`, with the field as `param` and the `host`).

    Attributes:
        host: Which one is meant; empty: all.
        entry: As in a models file, in JSON.
    """

    max_bytes: ClassVar[int] = 16_384
    host: str = ""
    entry: str


class ModelManaged(Wire, frozen=True, kw_only=True):
    """Answer to `ManageModel` and `PutModel`: the wish is noted, and the controller acts on it.

    Attributes:
        refused: Why it is not; empty: it is.
    """

    model: ModelName
    host: HostName
    refused: str = ""


class ModelState(Wire, frozen=True, kw_only=True):
    """What a router knows of a model that a host offers.

    Attributes:
        phase: `ready`: a group takes requests; `asleep`: none runs, and a request has it loaded; `absent`:
            none runs, and it was unloaded, scaled to no groups, or is still to be found.
        groups: Groups of it, by those that are ready and all that have processes.
        waiting: Requests that wait for it, at all routers; 0 while a group takes requests.
        why: The failure, or the wish of an operator.
        retry_s: Of a failed one, until it is tried again.
        load_s: How long its last load took; 0: not known.
    """

    card: ModelCard
    phase: Phase
    aliases: list[ModelName] = []
    groups_ready: int = 0
    groups: int = 0
    most_groups: int = 0
    pinned: bool = False
    priority: int = 0
    waiting: int = 0
    why: str = ""
    retry_s: float = 0.0
    load_s: float = 0.0
    charged_bytes: Bytes = 0
    first_bytes: Bytes = 0


class ListModels(Wire, frozen=True, kw_only=True):
    """Asks any router for the models that it can route to.

    Attributes:
        tenant: Lists what this tenant may use; empty: everything. Of a caller outside, its own tenant counts.
        adapters_of: The answer also lists the adapters of this model; empty: of none.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Annotated[str, msgspec.Meta(pattern=TENANT_OR_NONE)] = ""
    adapters_of: Annotated[str, msgspec.Meta(max_length=128)] = ""


class ModelList(Wire, frozen=True, kw_only=True):
    """Answer to `ListModels`: the models with at least one group that is ready."""

    models: list[ModelCard]
    away: Annotated[
        list[ModelName],
        msgspec.Meta(description="Models of which no group is ready now, though the router knows some."),
    ] = []
    offered: Annotated[
        list[ModelState],
        msgspec.Meta(description="What hosts offer, loaded or not; empty where no host loads models."),
    ] = []
    hosts: Annotated[
        list[HostName],
        msgspec.Meta(description="The hosts that offer models, by name; empty in an answer for one tenant."),
    ] = []
    adapters: Annotated[
        list[ListedAdapter], msgspec.Meta(description="Of the model that was asked for, by name.")
    ] = []
    settled: Annotated[
        bool,
        msgspec.Meta(
            description="False: the router has just started, and has not heard all groups and hosts yet."
        ),
    ] = True
