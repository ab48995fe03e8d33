"""Messages between a leader and its ranks about KV blocks in the store, on a socket beside the one for steps.

Frames are those of `rank_messages.py`. The leader decides which blocks are stored or fetched; ranks move
bytes between their KV cache and Redis. A step's plan names the blocks to copy (`StoreBlock`).
"""

from typing import Literal

import msgspec

Compression = Literal["none", "zstd"]


class KVStoreConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rank uses the store; times in seconds. Fields with a default are constants.

    Attributes:
        url: Address of Redis.
        compression: `zstd` compresses bytes ordered by significance, where that saves at least a twentieth.
        host_dir: Directory of the host tier (`services/worker/host_kv`); empty: there is none.
        host_bytes: Size of this rank's segment in it.
        host_owner: Names the segments of this group.
        ttl_s: Lifetime of written blocks that are not reported to the KV state service. They are reported
            within a second; the rest is for its outages.
        timeout_s: Time limit of one exchange with Redis.
        queue_bytes: Bytes of copies that may wait to be written; more are dropped, and reported so.
        host_lag_s: How long blocks that are in the host tier wait for the store while steps run
            (docs/decisions/0056).
    """

    url: str
    compression: Compression
    host_dir: str
    host_bytes: int
    host_owner: str
    ttl_s: float = 120.0
    timeout_s: float = 1.0
    queue_bytes: int = 128 * 2**20
    host_lag_s: float = 2.0


class StoreBlock(msgspec.Struct, frozen=True, array_like=True):
    """A full and computed block to copy for the store, under a name.

    Attributes:
        block: Of the layers that have no pool of sliding blocks.
        sliding: Of the other layers; -1 if there is no such pool.
    """

    block: int
    name: bytes
    sliding: int = -1


class FetchBlocks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Leader: read blocks of a sequence from the store; no step uses the target blocks until `FetchResult`.

    Attributes:
        blocks: Ids of the target blocks.
        names: Packed names, one for each of `blocks`, in the sequence's order; empty: only check that the
            store answers.
        sliding_blocks: Ids of the target blocks in the layers with a sliding window, one for each of
            `blocks`, -1 where these layers do not need it; empty: they have no pool of their own.
        after_step: Write nothing before this rank has begun this step or a later one. Then all earlier steps
            are done and the plan's copies are made; until then the target blocks may hold other content.
    """

    fetch_id: int
    blocks: list[int]
    names: bytes
    sliding_blocks: list[int] = []
    after_step: int = 0


class FetchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank: a fetch is done; the rank writes no more to its blocks.

    Attributes:
        count: Leading blocks of which all of this rank's heads are read and intact.
        num_bytes: Bytes read, as they were stored.
        missing: The block after those was not in the store.
        corrupt: Packed names of blocks with a wrong checksum.
        error: The store's error, if that ended the fetch.
        from_host: How many of the blocks were copied from the host tier; the leading ones.
    """

    fetch_id: int
    count: int
    num_bytes: int = 0
    seconds: float = 0.0
    missing: bool = False
    corrupt: bytes = b""
    error: str = ""
    from_host: int = 0


class StoreResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank: the results of copies that plans ordered, in any order, each copy once.

    Attributes:
        names: Packed names of written blocks.
        dropped: Packed names of blocks that were not written.
        num_bytes: Bytes written.
        crowded: Blocks were dropped only because too much was waiting; the store is well.
    """

    names: bytes = b""
    dropped: bytes = b""
    num_bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    crowded: bool = False


class KVParts(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of a block in the store: one value of `head_bytes` bytes for each KV head of the model."""

    heads: int
    head_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block, uncompressed."""
        return self.heads * self.head_bytes
