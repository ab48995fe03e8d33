"""What a leader and its ranks say about KV blocks in the store: on a socket of their own beside the steps.

Frames are those of `rank_messages.py`. Which blocks are worth storing or fetching is the leader's decision;
ranks move bytes between their KV cache and Redis. A step's plan says which blocks to copy (`StoreBlock`).
"""

from typing import Literal

import msgspec

Compression = Literal["none", "zstd"]


class KVStoreConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rank reaches the store; times in seconds.

    ttl_s: after it what was written expires, unless the KV state service was told of it. timeout_s: of one
    exchange with Redis. queue_bytes: copies that may wait to be written; more are dropped, and told so.
    compression: `zstd` compresses bytes in the order of their significance, where it saves at least a
    twentieth.
    """

    url: str
    ttl_s: float = 120.0
    timeout_s: float = 1.0
    queue_bytes: int = 128 * 2**20
    compression: Compression = "none"


class FetchBlocks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Leader: read these blocks of a sequence into these places; nobody else uses them until `FetchResult`.

    names: packed, one for each of `blocks`, in the sequence's order; none: the ranks only ask the store
    whether it is there. after_step: nothing is written before
    this rank has begun with that step or a later one, which means that the steps before it are done and the
    plan's copies are made: until then the places may be those of other content.
    """

    fetch_id: int
    blocks: list[int]
    names: bytes
    after_step: int = 0


class FetchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank: done with a fetch; it writes to none of its blocks any more.

    count: leading blocks of which all of this rank's heads are there and sound. missing: the first that is
    not was not in the store; corrupt: names of blocks whose bytes were not what their checksum says, packed.
    error: the store's trouble, if that is why.
    """

    fetch_id: int
    count: int
    num_bytes: int = 0
    seconds: float = 0.0
    missing: bool = False
    corrupt: bytes = b""
    error: str = ""


class StoreResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank: what became of copies that plans told it to store, in any order, each copy once.

    names: written, packed. dropped: not written, since the store failed or too much was waiting; crowded:
    only the latter, which says nothing about the store.
    """

    names: bytes = b""
    dropped: bytes = b""
    num_bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    crowded: bool = False
