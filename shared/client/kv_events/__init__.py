"""Follows the KV caches of groups by their events, for routers of one's own."""

from shared.client.kv_events.follower import KVEventFollower
from shared.client.kv_events.index import KVEventIndex
from shared.client.kv_events.names import block_names

__all__ = ["KVEventFollower", "KVEventIndex", "block_names"]
