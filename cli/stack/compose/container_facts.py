"""What the workers of `compose.yaml` have of a machine, and the memory limit of each container.

Containers share no packed weights, and bring kernels for every processor. The stores of `compose.yaml` have
fixed bounds.
"""

from dataclasses import replace

from cli.stack.memory_needs import (
    STORE_OVERHEAD,
    MachineFacts,
    ModelNeeds,
    group_bytes,
    own_weight_bytes,
    reading_bytes,
)
from cli.stack.sizing import Sizing, sizings_of
from services.worker.engine.native import build
from shared.host.cores_and_memory import machine_available_bytes, usable_cores

STORES_BYTES = 2 * 512 * 2**20  # `--maxmemory` of `redis` and `redis-kv`
# A container that reaches its limit is killed, so the limit is above what the group needs at its peak: by a
# quarter, and by what may lie in its /tmp.
LIMIT_FACTOR, LIMIT_MARGIN_BYTES = 1.25, 256 * 2**20


def container_facts(memory_gib: float) -> MachineFacts:
    """Look at this machine from outside or inside of a container, whose own limit does not count.

    Args:
        memory_gib: Memory that the stack may take; 0: what is free.
    """
    free = machine_available_bytes()
    if memory_gib:
        free = min(free, int(memory_gib * 2**30))
    return MachineFacts(
        cores=usable_cores(),
        free_bytes=max(0, free - int(STORES_BYTES * STORE_OVERHEAD)),
        kernels=bool(build.targets()),
    )


def limit_bytes(needs: ModelNeeds, sizing: Sizing, machine: MachineFacts) -> int:
    """Return the limit of a container with one group."""
    fixed = replace(needs, given=replace(needs.given, kv_cache_tokens=sizing.kv_cache_tokens))
    alone = sizings_of([fixed], replace(machine, free_bytes=2**60), [1])
    assert alone is not None, "memory without end"
    loading = own_weight_bytes(fixed, machine) + group_bytes(fixed) + reading_bytes(fixed, machine)
    return int(max(alone[0].needed_bytes, loading) * LIMIT_FACTOR) + LIMIT_MARGIN_BYTES
