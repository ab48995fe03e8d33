"""Chooses groups, ranks, threads, precision and KV room for a model on this machine, where no option does.

Pure. Weights are held once by each group. What does not fit is refused with the figures.
"""

from dataclasses import dataclass
from math import ceil

from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.engine.precision import HALF_KV, automatic_precision
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import EngineRunConfig, Precision, PrecisionWish

GROUPS = 2  # with two, streams survive the loss of one
KV_TOKENS = 65_536  # of a group, where memory allows; pages are taken only when they are used
LEAST_KV_TOKENS = 2_048
TOKEN_BUDGET, MAX_RUNNING = EngineRunConfig.token_budget, EngineRunConfig.max_running
_WORDS = {"bf16": "bf16 weights", "int8": "8-bit weights", "codes": "weights as codes"}
# of a group beside weights and KV: leader, fork server, a rank; measured with SmolLM2-135M
GROUP_BYTES = 650 * 2**20
MEMORY_SHARE = 0.95  # of the free memory; the rest is for the gateway and everything else


class DoesNotFit(Exception):
    """The model does not fit this machine as asked; the text has the figures and what to change."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this machine has.

    Attributes:
        cores: That may be used.
        free_bytes: Free memory.
        kernels: It has compiled kernels, or can have them.
        store_bytes: Memory that the stack's own stores may take.
    """

    cores: int
    free_bytes: int
    kernels: bool
    store_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """Memory that the groups may take."""
        return max(0, int(self.free_bytes * MEMORY_SHARE) - self.store_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingWishes:
    """What options and settings say; 0 or `auto` leaves it open.

    The last two settle how many blocks layers with a sliding window need.
    """

    groups: int = 0
    tensor_parallel: int = 0
    threads: int = 0
    precision: PrecisionWish = "auto"
    kv_cache_tokens: int = 0
    token_budget: int = TOKEN_BUDGET
    max_running: int = MAX_RUNNING


@dataclass(frozen=True, slots=True)
class Sizing:
    """What was chosen.

    Attributes:
        groups: Worker groups.
        tensor_parallel: Ranks of each.
        threads: Threads of each rank.
        precision: Of the weights.
        kv_cache_tokens: KV cache of each group.
        needed_bytes: Memory of all groups when their KV caches are full.
        sliding_tokens: The part of the KV cache's tokens that layers with a sliding window keep; 0: all.
    """

    groups: int
    tensor_parallel: int
    threads: int
    precision: Precision
    kv_cache_tokens: int
    needed_bytes: int
    sliding_tokens: int = 0


def choose_sizing(size: ModelSize, context: int, machine: MachineFacts, wishes: SizingWishes) -> Sizing:
    """Choose what is open.

    Two groups of one rank, the cores shared among them; the precision of the files, if kernels have it; as
    much KV as fits, at most `KV_TOKENS`. One group if two do not fit.

    Args:
        size: Of the model.
        context: The model's context length, in tokens.
        machine: This machine.
        wishes: What is settled already.

    Raises:
        DoesNotFit: Not even the smallest choice fits.
    """
    precision = _precision(size, machine) if wishes.precision == "auto" else wishes.precision
    tensor_parallel = wishes.tensor_parallel or 1
    least = min(LEAST_KV_TOKENS, context)
    room = machine.room_bytes
    each = GROUP_BYTES + size.weight_bytes(precision)
    steps = wishes.token_budget, wishes.max_running
    for groups in [wishes.groups] if wishes.groups else range(GROUPS, 0, -1):
        tokens = wishes.kv_cache_tokens or min(
            KV_TOKENS, size.fitting_tokens(room // groups - each, precision, *steps)
        )
        pools = size.pools(tokens, *steps)
        needed = groups * (each + size.cache_bytes(pools, precision))
        if tokens >= min(least, wishes.kv_cache_tokens or least) and needed <= room:
            threads = wishes.threads or max(1, machine.cores // (groups * tensor_parallel))
            sliding = pools.num_sliding * BLOCK_SIZE
            return Sizing(groups, tensor_parallel, threads, precision, tokens, needed, sliding)
    raise DoesNotFit(_figures(size, precision, wishes, least, machine))


def describe_sizing(sizing: Sizing, size: ModelSize, machine: MachineFacts) -> str:
    """Say in one line what was chosen, and why."""
    kv = "fp16" if sizing.precision in HALF_KV else "fp32"
    weights = f"{_stored(size)} weights" if sizing.precision == "fp32" else _WORDS[sizing.precision]
    precision = f"{weights}, {kv} KV (precision {sizing.precision})"
    why = "" if machine.kernels else " (no compiled kernels here)"
    groups = (
        "two groups, so that streams survive one"
        if sizing.groups == GROUPS
        else _count(sizing.groups, "group")
    )
    sliding = f" ({sizing.sliding_tokens:,} in layers with a sliding window)" if sizing.sliding_tokens else ""
    shape = f"{_count(sizing.tensor_parallel, 'rank')} of {_count(sizing.threads, 'thread')}"
    return (
        f"{size.parameters / 1e6:.0f} M parameters on {_count(machine.cores, 'core')}, "
        f"{_size(machine.free_bytes)} free: {groups}, each {shape}; {precision}{why}; "
        f"KV for {sizing.kv_cache_tokens:,} tokens a group{sliding}; "
        f"at most {_size(sizing.needed_bytes)} of memory."
    )


def _figures(
    size: ModelSize, precision: Precision, wishes: SizingWishes, least: int, machine: MachineFacts
) -> str:
    groups = wishes.groups or 1
    tokens = wishes.kv_cache_tokens or least
    pools = size.pools(tokens, wishes.token_budget, wishes.max_running)
    weights, kv = size.weight_bytes(precision), size.cache_bytes(pools, precision)
    needed = groups * (GROUP_BYTES + weights + kv)
    remedies = ["`--precision int8`"] * (precision in {"fp32", "bf16"}) + ["fewer `--groups`"] * (groups > 1)
    remedies += ["a smaller RYZ_KV_CACHE_TOKENS"] * (wishes.kv_cache_tokens > least)
    remedies += ["a smaller `--redis-memory-share`"] * (machine.store_bytes > 0) + ["a smaller model"]
    stores = f" and the stores' {_size(machine.store_bytes)}" * (machine.store_bytes > 0)
    return (
        f"The model does not fit: {_count(groups, 'group')} with weights of {_size(weights)}, KV of "
        f"{_size(kv)} for {tokens:,} tokens and {_size(GROUP_BYTES)} for processes need {_size(needed)}, and "
        f"{_size(machine.room_bytes)} are there: {_size(machine.free_bytes)} of free memory without a reserve"
        f"{stores}. Take {' or '.join(remedies)}."
    )


def _precision(size: ModelSize, machine: MachineFacts) -> Precision:
    """What `auto` stands for."""
    return automatic_precision(size.stored, kernels=machine.kernels)


def _stored(size: ModelSize) -> str:
    return "fp32" if size.stored_bytes == 4 else "16-bit"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{ceil(count / 2**20)} MiB"
