"""The calls of leaders about KV blocks."""

from services.kvstate.blocks.metrics import BlockMetrics
from services.kvstate.blocks.tier import BlockTier
from services.kvstate.call_server import CallKind
from shared import subjects
from shared.errors import InvalidRequest
from shared.kv_hash import NAME_BYTES, split
from shared.messages import BlocksCommit, BlocksCommitted, BlocksFind, BlocksFound


class BlockCalls:
    """Answers the calls. Names of blocks depend on the tenant that may share them."""

    def __init__(self, tier: BlockTier, metrics: BlockMetrics) -> None:
        self._tier = tier
        self._metrics = metrics

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the calls with their names, subjects and types."""
        return (
            CallKind("find", subjects.BLOCKS_FIND, BlocksFind, self._find),
            CallKind("commit_blocks", subjects.BLOCKS_COMMIT, BlocksCommit, self._commit),
        )

    async def _find(self, query: BlocksFind) -> BlocksFound:
        names = _names(query.names)
        found = await self._tier.find_blocks(names, query.lease_ms, query.parts)
        self._metrics.found(found.blocks, len(names))
        return BlocksFound(count=found.blocks, num_bytes=found.num_bytes)

    async def _commit(self, commit: BlocksCommit) -> BlocksCommitted:
        asked = {name for one in commit.held for name in _names(one.names)}
        done = await self._tier.commit_blocks(commit.held)
        self._metrics.committed(done.stored, len(asked))
        return done


def _names(packed: bytes) -> list[bytes]:
    if len(packed) % NAME_BYTES:
        raise InvalidRequest(
            f"names of KV blocks take {NAME_BYTES} bytes each, got {len(packed)} bytes", param="names"
        )
    return split(packed)
