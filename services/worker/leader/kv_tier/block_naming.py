"""Names the blocks of long sequences in portions, between which the event loop goes on."""

import asyncio
from itertools import islice

from services.worker.leader.engine_state import EngineState

_PART = 256  # names that are made at once; some 0.3 ms


async def name_blocks(engine: EngineState, token_ids: bytes, tenant: str, adapter: str) -> list[bytes]:
    """Returns the names of all full blocks of a tenant's packed tokens, computed with that adapter."""
    names: list[bytes] = []
    coming = engine.facts.names.of_packed(token_ids, tenant, adapter)
    while part := list(islice(coming, _PART)):
        names += part
        await asyncio.sleep(0)
    return names


async def count_cached_blocks(engine: EngineState, token_ids: bytes, tenant: str, adapter: str) -> int:
    """Returns how many leading blocks are in the group's memory; none is named beyond the first gap."""
    scheduler, count = engine.scheduler, 0
    if scheduler is None:
        return 0
    for name in engine.facts.names.of_packed(token_ids, tenant, adapter):
        if not scheduler.blocks.is_cached(name):
            break
        count += 1
        if count % _PART == 0:
            await asyncio.sleep(0)
    return count
