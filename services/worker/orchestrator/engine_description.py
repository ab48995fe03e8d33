"""What a started engine is, from what its ranks said when they were ready. Pure."""

from collections.abc import Sequence

from services.worker.rank_protocol.plan import EngineInfo
from services.worker.rank_protocol.rank_messages import RankReady


def describe_engine(ranks: Sequence[RankReady]) -> EngineInfo:
    """Return the description of an engine of these ranks, in their order; all of them have the same model."""
    first = ranks[0]
    return EngineInfo(
        num_blocks=first.num_blocks,
        vocab_size=first.vocab_size,
        context_length=first.context_length,
        fingerprint=first.fingerprint,
        kv_format=first.kv_format,
        kv_parts=first.kv_parts,
        hidden_size=first.hidden_size,
        num_sliding_blocks=first.num_sliding_blocks,
        window=first.window,
        block_bytes=min(rank.block_bytes for rank in ranks),
        sliding_bytes=min(rank.sliding_bytes for rank in ranks),
        ranks=[rank.info for rank in ranks],
    )
