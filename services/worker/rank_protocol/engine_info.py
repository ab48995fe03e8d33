"""What an engine says of itself when it is ready."""

import msgspec

from services.worker.rank_protocol.kv_messages import KVParts
from shared.messages import GuestCard

MAX_OUTSTANDING = 2  # steps that an engine takes before the first of them is done


class RankInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank after its start.

    Attributes:
        kernels: Names its kernels, such as `plain` or `native int8`.
        why_plain: Why it computes without compiled kernels; empty: it has them, or its device needs none.
        numa_node: The NUMA node of its cores and memory; -1: the machine has one, or it may use all.
        gpu: NVIDIA's id of its GPU if that is on the leader's host; empty: none.
    """

    rank: int
    pid: int
    load_s: float
    loaded_bytes: int
    peak_rss_bytes: int
    kernels: str = ""
    why_plain: str = ""
    numa_node: int = -1
    gpu: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine that is ready.

    Attributes:
        fingerprint: Names weights and config, independent of the number of ranks.
        kv_format: Format of keys and values; engines of other formats cannot use the blocks.
        kv_parts: Layout of its blocks in the store; None: it has no store.
        num_sliding_blocks: Blocks of the layers with a sliding window; 0: these use the same as all others.
        window: Tokens that the widest of these layers see; 0: there is no pool of sliding blocks.
        run_ahead: Steps to queue behind the running one; 0 if a step takes no time.
        hidden_size: Length of a hidden state, and so of an embedding.
        block_bytes: Memory of a block on the rank that has the least of it, which goes back to the system
            when the block is vacated; 0: it does not, as on a GPU.
        sliding_bytes: The same of a sliding block.
        adapters: Whether it computes with adapters.
        streams: Sequences generate on their own from their admission to their release; a step brings what
            has arrived of them, one token of each at most. Then `run_ahead` is 0.
        max_running: Sequences that it computes at once; 0: as many as it is given.
        guest: The engine of others that computes, and what it lacks; None: an engine of ours.
        ranks: The ranks, in order; none for an engine of others.
    """

    num_blocks: int
    vocab_size: int
    context_length: int
    fingerprint: str
    kv_format: str = "fp32"
    kv_parts: KVParts | None = None
    num_sliding_blocks: int = 0
    window: int = 0
    run_ahead: int = MAX_OUTSTANDING - 1
    hidden_size: int = 0
    block_bytes: int = 0
    sliding_bytes: int = 0
    adapters: bool = False
    streams: bool = False
    max_running: int = 0
    guest: GuestCard | None = None
    ranks: list[RankInfo] = []
