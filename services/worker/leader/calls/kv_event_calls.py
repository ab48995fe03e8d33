"""The calls of those that follow the group's KV events."""

from services.worker.leader.kv_events.publisher import KVEventPublisher
from shared.bus.api import Message
from shared.messages import KVFollow, KVFollowed, KVReplay, KVReplayed, KVSnapshotPage, KVSnapshotQuery

MAX_ASKED = 64  # calls of all followers that may wait; those above are dropped, and asked again


class KVEventCalls:
    """The calls of the follow, replay and snapshot subjects."""

    def __init__(self, publisher: KVEventPublisher) -> None:
        self._publisher = publisher

    async def follow(self, asked: KVFollow, _: Message) -> KVFollowed:
        """Has events published for a while."""
        return self._publisher.follow(asked)

    async def replay(self, asked: KVReplay, _: Message) -> KVReplayed:
        """Returns events again."""
        return self._publisher.replay(asked)

    async def snapshot(self, asked: KVSnapshotQuery, _: Message) -> KVSnapshotPage:
        """Returns a page of the cache's blocks."""
        return self._publisher.snapshot(asked)
