"""The call that asks all groups how much of a sequence is in their memory."""

from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.block_naming import count_cached_blocks
from shared import codec, kv_hash
from shared.bus.api import Message
from shared.messages import HoldersQuery, Holding

MAX_ASKED = 16  # calls of all callers that may wait; those above are dropped


class HoldersCalls:
    """The call of the holders subject."""

    def __init__(self, context: LeaderContext, engine: EngineState, tensor_parallel: int) -> None:
        self._context = context
        self._engine = engine
        self._tensor_parallel = tensor_parallel

    async def find_cached(self, query: HoldersQuery, _: Message) -> Holding:
        """Returns how many leading tokens of a sequence are in this group's memory."""
        cached = await count_cached_blocks(self._engine, query.token_ids, query.tenant, query.adapter)
        return Holding(
            group=self._context.group,
            model=self._context.model,
            num_tokens=codec.num_packed(query.token_ids),
            cached_tokens=cached * kv_hash.BLOCK_TOKENS,
            tensor_parallel=self._tensor_parallel,
            kv_format=self._engine.facts.names.kv_format,
        )


def check_token_ids(query: HoldersQuery, _: Message) -> None:
    """Raises `InvalidRequest` if the packed token ids are cut."""
    codec.num_packed(query.token_ids)
