"""What the KV state service answers to calls about KV blocks."""

from services.kvstate.blocks.block_metrics import BlockMetrics
from services.kvstate.blocks.tier import Tier
from services.kvstate.handlers import Named
from shared import subjects
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.kv_hash import NAME_BYTES, split
from shared.messages import BlocksCommit, BlocksFind, BlocksFound


class BlockCalls:
    """The calls of leaders. Blocks are found by name alone, whose root says who may know it."""

    def __init__(self, tier: Tier, metrics: BlockMetrics) -> None:
        self._tier = tier
        self._metrics = metrics

    def named(self) -> tuple[Named, ...]:
        """The calls with their names and subjects."""
        return (
            ("find", subjects.BLOCKS_FIND, self._find),
            ("commit_blocks", subjects.BLOCKS_COMMIT, self._commit),
        )

    async def _find(self, data: bytes) -> bytes:
        query = decode(data, BlocksFind)
        names = _names(query.names)
        found = await self._tier.find(names, query.lease_ms, query.parts)
        self._metrics.found(found.blocks, len(names))
        return encode(BlocksFound(count=found.blocks, num_bytes=found.num_bytes))

    async def _commit(self, data: bytes) -> bytes:
        commit = decode(data, BlocksCommit)
        asked = {name for one in commit.held for name in _names(one.names)}
        done = await self._tier.commit(commit.held)
        self._metrics.committed(done.stored, len(asked))
        return encode(done)


def _names(packed: bytes) -> list[bytes]:
    if len(packed) % NAME_BYTES:
        raise InvalidRequest(
            f"names of KV blocks take {NAME_BYTES} bytes each, got {len(packed)} bytes", param="names"
        )
    return split(packed)
