"""Batches and pages read samples of heartbeats: more of them than that are no reason to warn."""

import asyncio

from structlog.testing import capture_logs

from services.gateway.pages import cluster_feed
from services.gateway.pages.cluster_feed import ClusterFeed
from services.gateway.resources.batches import group_loads
from services.gateway.resources.batches.group_loads import GroupLoads
from shared import subjects
from shared.client.generation.commands import GenerationStats
from tests.kits.memory_bus import MemoryBus


async def test_more_heartbeats_than_are_read_are_not_warned_of(memory_bus: MemoryBus) -> None:
    loads, feed = GroupLoads(memory_bus), ClusterFeed(memory_bus, GenerationStats())
    beats = 2 * max(group_loads.PER_S, cluster_feed.BEATS_PER_S)
    with capture_logs() as logs:
        await loads.listen(on=True)
        async with feed.viewer("tenant"):
            for _ in range(beats):
                await memory_bus.publish(subjects.HEARTBEAT_ALL.replace("*", "g0"), b"no heartbeat")
            await asyncio.sleep(0)
            assert memory_bus.stats.received >= group_loads.PER_S + cluster_feed.BEATS_PER_S
    await loads.listen(on=False)
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert memory_bus.stats.throttled == 0
