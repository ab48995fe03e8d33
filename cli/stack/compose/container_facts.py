"""What the workers of `compose.yaml` have of a machine, and how much a container of theirs needs.

Containers share no packed weights, and bring kernels for every processor. The stores of `compose.yaml` have
fixed bounds.
"""

from dataclasses import replace

from cli.stack.memory_needs import (
    MEMORY_SHARE,
    SERVICES_BYTES,
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


def container_facts(groups: int, limit: int = 0) -> MachineFacts:
    """Look at this machine from inside of a container, whose own memory limit does not count.

    Its cores do: those of the workers are the same (`cpuset`).

    Args:
        groups: Containers of the workers.
        limit: Bytes that each of them may take; 0: there is no limit.
    """
    free = max(0, machine_available_bytes() - int(STORES_BYTES * STORE_OVERHEAD))
    machine = MachineFacts(cores=usable_cores(), free_bytes=free, kernels=bool(build.targets()))
    if not limit:
        return machine
    of_groups = groups * int(max(0, limit - LIMIT_MARGIN_BYTES) / LIMIT_FACTOR)
    # the planner leaves a part of what is free to other processes, which these limits do not bind
    wanted = max(of_groups + SERVICES_BYTES, int(of_groups / MEMORY_SHARE))
    return replace(machine, free_bytes=min(free, wanted))


def limit_bytes(needs: ModelNeeds, sizing: Sizing, machine: MachineFacts) -> int:
    """Return the least limit of a container with one group."""
    fixed = replace(needs, given=replace(needs.given, kv_cache_tokens=sizing.kv_cache_tokens))
    alone = sizings_of([fixed], replace(machine, free_bytes=2**60), [1])
    assert alone is not None, "memory without end"
    loading = own_weight_bytes(fixed, machine) + group_bytes(fixed) + reading_bytes(fixed, machine)
    return int(max(alone[0].needed_bytes, loading) * LIMIT_FACTOR) + LIMIT_MARGIN_BYTES
