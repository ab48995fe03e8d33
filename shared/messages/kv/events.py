"""KV events: which blocks come into a group's KV cache and which leave it, for routers of others.

A leader numbers its events within an epoch. An epoch is one unbroken history of one cache: it ends when the
engine is lost or started, when the leader ends, and when no follower has asked for `lease_ms`. Numbers of
different epochs say nothing of each other.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.messages.base import SMALL, GroupName, Milliseconds, ModelName, Wire
from shared.messages.kv.blocks import BlockNames, Count

Epoch = Annotated[
    str, msgspec.Meta(min_length=1, max_length=128, description="Unique; has no order. Equal or not.")
]
Seq = Annotated[int, msgspec.Meta(ge=0, description="Number of an event in its epoch, from 1 on.")]


class KVEvents(Wire, frozen=True, kw_only=True):
    """What changed in the KV cache of a group since the event before it of the same epoch.

    Attributes:
        seq: One more than that of the event before it. 0 announces an epoch, and changes nothing.
        removed: Blocks that are not there any more.
        stored: Blocks that are there now; none is in `removed` as well.
    """

    group: GroupName
    epoch: Epoch
    seq: Seq
    removed: BlockNames = b""
    stored: BlockNames = b""


class KVFollow(Wire, frozen=True, kw_only=True):
    """Asks every leader for its KV events for the next `lease_ms`. Each answers with `KVFollowed`."""

    max_bytes: ClassVar[int] = SMALL


class KVFollowed(Wire, frozen=True, kw_only=True):
    """Answer to `KVFollow`: the state of a group's events, and what is needed to name blocks.

    Attributes:
        seq: Of the last event.
        lease_ms: How long events are sent from now on, unless a follower asks again.
        held: Blocks in the cache.
        block_tokens: Tokens of a block.
        fingerprint: Of the weights; a part of the names' root, as `kv_format` is.
        sharing: Whose prompts share blocks: those of one tenant, all, or none. With `all` the tenant in the
            root is empty; with `off` there are no names.
    """

    group: GroupName
    model: ModelName
    epoch: Epoch
    seq: Seq
    lease_ms: Milliseconds
    held: Count = 0
    block_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    fingerprint: str = ""
    kv_format: str = ""
    sharing: Literal["tenant", "all", "off"] = "tenant"


class KVReplay(Wire, frozen=True, kw_only=True):
    """Asks a leader for the events of an epoch behind number `after`."""

    max_bytes: ClassVar[int] = SMALL
    epoch: Epoch
    after: Seq


class KVReplayed(Wire, frozen=True, kw_only=True):
    """Answer to `KVReplay`.

    Attributes:
        epoch: The present one.
        seq: Of its last event.
        events: In order, as many as fit into a message; ask again behind the last of them.
        gone: The epoch has ended, or the next event is not kept any more: take a snapshot.
    """

    epoch: Epoch
    seq: Seq
    events: list[KVEvents] = []
    gone: bool = False


class KVSnapshotQuery(Wire, frozen=True, kw_only=True):
    """Asks a leader for the blocks in its cache.

    Attributes:
        snapshot: As the first page named it; empty: takes one, or a young one that another follower took.
        offset: Blocks of it to pass over: those of the pages before.
    """

    max_bytes: ClassVar[int] = SMALL
    snapshot: Annotated[str, msgspec.Meta(max_length=160)] = ""
    offset: Count = 0


class KVSnapshotPage(Wire, frozen=True, kw_only=True):
    """Answer to `KVSnapshotQuery`: a part of the cache as it was after an event.

    Attributes:
        seq: Of that event, the same on all pages.
        total: Blocks of the snapshot; it is complete with the page that reaches them.
        gone: The snapshot is not kept any more, or its epoch has ended: take another one.
    """

    epoch: Epoch
    seq: Seq
    snapshot: Annotated[str, msgspec.Meta(max_length=160)] = ""
    offset: Count = 0
    total: Count = 0
    names: BlockNames = b""
    gone: bool = False
