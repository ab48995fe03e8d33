"""The call that limits what the group's KV cache may take."""

from services.worker.leader.kv_room import KVRoom
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.bus.api import Message
from shared.errors import Unavailable
from shared.messages import KVLimited, LimitKV


class KVLimitCalls:
    """The call of the subject for limits."""

    def __init__(self, group: str, room: KVRoom) -> None:
        self._group = group
        self._room = room

    async def limit_kv(self, asked: LimitKV, _: Message) -> KVLimited:
        """Sets the limit, and returns the one that holds."""
        use = self._room.use()
        if not use.most:
            raise Unavailable(f"the engine of group {self._group!r} is down", reason="engine_down")
        if not use.block_bytes:
            return KVLimited(group=self._group)
        self._room.set_kv_limit(asked.limit_bytes // use.block_bytes if asked.limit_bytes else None)
        use = self._room.use()
        return KVLimited(
            group=self._group,
            limit_bytes=use.limit * use.block_bytes,
            most_bytes=use.most * use.block_bytes,
            most_tokens=use.most * BLOCK_SIZE,
            least_bytes=use.least * use.block_bytes,
            needed_bytes=use.needed * use.block_bytes,
        )
