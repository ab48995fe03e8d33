"""Chooses groups, ranks, threads, precision, KV room and the stores' bound for a model on this machine.

Pure. Weights are held once by each group. Everything may grow to its bound at the same time: the full KV of
all groups and both stores fit beside each other, so that no rank is killed for want of memory. What does not
fit is refused; `sizing_text.py` says why, and what to do.
"""

from dataclasses import dataclass

from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.engine.precision import automatic_precision
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import EngineRunConfig, Precision, PrecisionChoice

GROUPS = 2  # with two, streams survive the loss of one
KV_TOKENS = 65_536  # of a group, where memory allows; pages are taken only when they are used
LEAST_KV_TOKENS = 2_048
LEAST_GIVEN_TOKENS = 128  # below it a chat template and a short question leave no room for an answer
TOKEN_BUDGET, MAX_RUNNING = EngineRunConfig.token_budget, EngineRunConfig.max_running
# of a group beside weights and KV: leader, fork server, a rank; measured with SmolLM2-135M
GROUP_BYTES = 650 * 2**20
MEMORY_SHARE = 0.95  # of the free memory; the rest is for other programs
SERVICES_BYTES = 384 * 2**20  # gateway, router, kvstate, broker and supervisor, if that is more than the rest
# The stores begin with a few MiB. Where memory is short, they are bounded by what KV leaves, but not lower.
LEAST_STORE_BYTES = 128 * 2**20
STORE_PART = 0.25  # of what weights and processes leave; KV caches get the rest first
STORE_OVERHEAD = (
    1.15  # memory of a Redis for each byte of its `maxmemory`: fragments, and copies for its file
)


class DoesNotFit(Exception):
    """The model does not fit this machine as asked; `sizing_text.refusal` has the words."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this machine has.

    Attributes:
        kernels: It has compiled kernels, or can have them.
        store_bytes: The most that the stack's own stores may hold; 0 if it starts none.
    """

    cores: int
    free_bytes: int
    kernels: bool
    store_bytes: int = 0

    @property
    def reserve_bytes(self) -> int:
        """Free memory that neither groups nor stores get."""
        return max(SERVICES_BYTES, self.free_bytes - int(self.free_bytes * MEMORY_SHARE))

    @property
    def room_bytes(self) -> int:
        """Memory that groups and stores may take."""
        return max(0, self.free_bytes - self.reserve_bytes)

    @property
    def least_store_bytes(self) -> int:
        """Memory that the stores need in any case."""
        return int(min(self.store_bytes, LEAST_STORE_BYTES) * STORE_OVERHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSizing:
    """What options and settings say; 0 or `auto` leaves it open.

    The last two settle how many blocks layers with a sliding window need.
    """

    groups: int = 0
    tensor_parallel: int = 0
    threads: int = 0
    precision: PrecisionChoice = "auto"
    kv_cache_tokens: int = 0
    token_budget: int = TOKEN_BUDGET
    max_running: int = MAX_RUNNING

    @property
    def steps(self) -> tuple[int, int]:
        """Arguments for `ModelSize.pools`."""
        return self.token_budget, self.max_running


@dataclass(frozen=True, slots=True)
class Sizing:
    """What was chosen.

    Attributes:
        tensor_parallel: Ranks of each.
        threads: Threads of each rank.
        kv_cache_tokens: KV cache of each group.
        needed_bytes: Memory of all groups when their KV caches are full.
        sliding_tokens: The part of the KV cache's tokens that layers with a sliding window keep; 0: all.
        store_bytes: The most that the stores may hold together.
    """

    groups: int
    tensor_parallel: int
    threads: int
    precision: Precision
    kv_cache_tokens: int
    needed_bytes: int
    sliding_tokens: int = 0
    store_bytes: int = 0


def choose_sizing(size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing) -> Sizing:
    """Choose what is open.

    Two groups of one rank, the cores shared among them; the precision of the files, if kernels have it. One
    group only if two do not fit with the least KV. Of the memory that is left after weights and processes
    the stores get a quarter, KV caches as much as they want of the rest, and the stores what these leave.

    Args:
        context: The model's context length, in tokens.

    Raises:
        DoesNotFit: Not even the smallest choice fits.
    """
    for groups in [given.groups] if given.groups else range(GROUPS, 0, -1):
        sizing = sizing_of(size, context, machine, given, groups)
        if sizing is not None:
            return sizing
    raise DoesNotFit


def sizing_of(
    size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing, groups: int
) -> Sizing | None:
    """Choose for so many groups; None if they do not fit."""
    precision = chosen_precision(size, machine, given)
    rest = machine.room_bytes - groups * group_bytes(size, precision)
    least = least_tokens(context, given)
    wanted = int(min(machine.store_bytes * STORE_OVERHEAD, max(0, rest) * STORE_PART))
    for stores in (max(machine.least_store_bytes, wanted), machine.least_store_bytes):
        tokens = given.kv_cache_tokens or min(
            KV_TOKENS, size.fitting_tokens((rest - stores) // groups, precision, *given.steps)
        )
        pools = size.pools(tokens, *given.steps)
        caches = groups * size.cache_bytes(pools, precision)
        if tokens >= least and caches + stores <= rest:
            ranks = given.tensor_parallel or 1
            return Sizing(
                groups=groups,
                tensor_parallel=ranks,
                threads=given.threads or max(1, machine.cores // (groups * ranks)),
                precision=precision,
                kv_cache_tokens=tokens,
                needed_bytes=groups * group_bytes(size, precision) + caches,
                sliding_tokens=pools.num_sliding * BLOCK_SIZE,
                store_bytes=min(machine.store_bytes, int((rest - caches) / STORE_OVERHEAD)),
            )
    return None


def missing_bytes(
    size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing, groups: int
) -> int:
    """Free memory that so many groups lack, with the least KV."""
    precision = chosen_precision(size, machine, given)
    tokens = given.kv_cache_tokens or least_tokens(context, given)
    cache = size.cache_bytes(size.pools(tokens, *given.steps), precision)
    needed = groups * (group_bytes(size, precision) + cache) + machine.least_store_bytes
    return max(0, needed + machine.reserve_bytes - machine.free_bytes)


def least_tokens(context: int, given: GivenSizing) -> int:
    """The fewest tokens of KV with which a group is useful."""
    least = min(LEAST_KV_TOKENS, context)
    return min(least, given.kv_cache_tokens or least)


def group_bytes(size: ModelSize, precision: Precision) -> int:
    """Memory of a group without its KV."""
    return GROUP_BYTES + size.weight_bytes(precision)


def chosen_precision(size: ModelSize, machine: MachineFacts, given: GivenSizing) -> Precision:
    """The precision that was asked for, or what `auto` stands for."""
    if given.precision == "auto":
        return automatic_precision(size.stored, kernels=machine.kernels)
    return given.precision
