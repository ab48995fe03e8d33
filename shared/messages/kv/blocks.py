"""KV blocks: which are stored, which sessions hold them, and which groups have them in memory.

Messages name blocks (`shared/kv_hash.py`), with names packed one after another. The bytes never cross the
bus: ranks write and read them in Redis, under the keys of `shared/kv_hash.py`.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.kv_hash import NAME_BYTES
from shared.messages.base import SMALL, GroupName, Milliseconds, SessionId, Tenant, TokenIds, Wire

MAX_NAMES = 16_384  # of one call; more than a quarter of a million tokens
KVSource = Literal["", "new", "warm", "fetch", "recompute"]

BlockNames = Annotated[
    bytes,
    msgspec.Meta(
        max_length=MAX_NAMES * NAME_BYTES, description=f"Names of KV blocks, {NAME_BYTES} bytes each, packed."
    ),
]
Count = Annotated[int, msgspec.Meta(ge=0)]


class BlocksFind(Wire, frozen=True, kw_only=True):
    """Asks how many of a sequence's blocks are stored, from the first on without a gap.

    Attributes:
        lease_ms: How long the blocks found are not evicted.
        parts: How many parts a block has. If given, complete blocks that were not committed yet count as
            well.
    """

    names: BlockNames
    lease_ms: Milliseconds = 0
    parts: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0


class BlocksFound(Wire, frozen=True, kw_only=True):
    """Answer to `BlocksFind`.

    Attributes:
        count: How many leading names are stored.
        num_bytes: Their stored bytes.
    """

    count: Count
    num_bytes: Count = 0


class HeldBlocks(Wire, frozen=True, kw_only=True):
    """Blocks of one sequence that all ranks of a group have written, from the first on.

    Attributes:
        session_id: The session that holds them from now on, in place of what it held. Empty: none; they are
            kept by age alone.
        parts: How many KV heads each block has. Names without bytes in the store are passed over.
    """

    tenant: Tenant
    names: BlockNames
    parts: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    session_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    priority: Annotated[int, msgspec.Meta(ge=-10, le=10, description="Higher stays longer.")] = 0


class BlocksCommit(Wire, frozen=True, kw_only=True):
    """Reports to the KV state service which blocks were written. Each entry is handled for itself."""

    group: GroupName
    held: Annotated[list[HeldBlocks], msgspec.Meta(min_length=1)]


class BlocksCommitted(Wire, frozen=True, kw_only=True):
    """Answer to `BlocksCommit`.

    Attributes:
        stored: Blocks that are in the store now.
        evicted: Blocks that were evicted to make room.
        over_quota: Positions in `held` whose blocks were deleted again, since the tenant or the session is
            over its quota.
        pause_ms: The store has no room: write nothing for so long.
    """

    stored: Count = 0
    evicted: Count = 0
    over_quota: list[int] = []
    pause_ms: Milliseconds = 0


class HoldersQuery(Wire, frozen=True, kw_only=True):
    """Asks every leader how much of a sequence it has in memory. Each answers with a `Holding`.

    Attributes:
        adapter: Fingerprint of the adapter that computed it; empty: the base alone.
    """

    tenant: Tenant
    token_ids: TokenIds
    adapter: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{32})?\Z")] = ""


class Holding(Wire, frozen=True, kw_only=True):
    """Answer to `HoldersQuery`: KV of the first `cached_tokens` of `num_tokens` is in memory."""

    group: GroupName
    model: str
    num_tokens: Count = 0
    cached_tokens: Count = 0
    tensor_parallel: int = 1
    kv_format: str = ""


class WarmSession(Wire, frozen=True, kw_only=True):
    """Asks a leader to fetch a session's KV into memory, so that its next turn can go there."""

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    session_id: SessionId


class Warmed(Wire, frozen=True, kw_only=True):
    """Answer to `WarmSession`: tokens of the session, those in memory now, those fetched for this call."""

    group: GroupName
    num_tokens: Count = 0
    cached_tokens: Count = 0
    fetched_tokens: Count = 0
