"""KV blocks in the store: which are there, which sequences hold them, and who has them in memory.

Blocks go by their names (`shared/kv_hash.py`), several of them packed one after another. Their bytes never
cross the bus: ranks write and read them in Redis, under the keys of `shared/kv_store.py`.
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

    lease_ms: for so long the blocks found are not evicted. parts: of which a block consists; with it blocks
    count that are whole, but of which nobody has told yet.
    """

    names: BlockNames
    lease_ms: Milliseconds = 0
    parts: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0


class BlocksFound(Wire, frozen=True, kw_only=True):
    """Answer to `BlocksFind`.

    count: leading names that are stored. num_bytes: stored bytes of those.
    """

    count: Count
    num_bytes: Count = 0


class HeldBlocks(Wire, frozen=True, kw_only=True):
    """Blocks of one sequence that all ranks of a group have written, from the first on.

    session_id: the session that holds them from now on, in place of what it held; empty: none, they are kept
        by age alone. parts: KV heads of which each block is made. Names whose bytes are not in the store
        are passed over.
    """

    tenant: Tenant
    names: BlockNames
    parts: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    session_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    priority: Annotated[int, msgspec.Meta(ge=-10, le=10, description="Higher stays longer.")] = 0


class BlocksCommit(Wire, frozen=True, kw_only=True):
    """Tells the KV state service what was written; each entry stands or falls alone."""

    group: GroupName
    held: Annotated[list[HeldBlocks], msgspec.Meta(min_length=1)]


class BlocksCommitted(Wire, frozen=True, kw_only=True):
    """Answer to `BlocksCommit`.

    stored: blocks that are in the store now. evicted: blocks that went to make room. over_quota: places in
        `held` of which blocks were deleted again, for their tenant or session may not have more.
    pause_ms: the store has no room at all; write nothing for so long.
    """

    stored: Count = 0
    evicted: Count = 0
    over_quota: list[int] = []
    pause_ms: Milliseconds = 0


class HoldersQuery(Wire, frozen=True, kw_only=True):
    """Asks every leader how much of a sequence it has in memory; each answers with a `Holding`."""

    tenant: Tenant
    token_ids: TokenIds


class Holding(Wire, frozen=True, kw_only=True):
    """A group's answer: of `num_tokens`, the first `cached_tokens` have their KV in its memory."""

    group: GroupName
    model: str
    num_tokens: Count = 0
    cached_tokens: Count = 0
    tensor_parallel: int = 1
    kv_format: str = ""


class WarmSession(Wire, frozen=True, kw_only=True):
    """Asks a leader to have a session's KV in memory, so that its next turn may go there."""

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    session_id: SessionId


class Warmed(Wire, frozen=True, kw_only=True):
    """Answer to `WarmSession`: of the session's tokens, those in memory now, and those fetched for it."""

    group: GroupName
    num_tokens: Count = 0
    cached_tokens: Count = 0
    fetched_tokens: Count = 0
