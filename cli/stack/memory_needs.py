"""What groups of models take of a machine's memory, beside their KV. Pure.

Groups of a model that map the same packed weights (`packed_dir.py` of the worker's kernels) hold these once,
other groups a copy each. Where it is not certain that they can map them, copies are counted. While
they load, one group packs, and its copy goes before it maps the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from services.worker.domain.adapters.pool_bytes import POOL_BYTES
from services.worker.domain.speculation.speculation import MAX_SEQUENCES
from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.engine.native.mapped.packed_room import LEAST_BYTES
from services.worker.engine.precision import automatic_precision
from services.worker.leader.drafting.draft_rounds import FEW_TOKENS, POOL_TOKENS, READ_TOKENS
from services.worker.rank_protocol.run_config import EngineRunConfig, Precision, PrecisionChoice

TOKEN_BUDGET, MAX_RUNNING = EngineRunConfig.token_budget, EngineRunConfig.max_running
# Of a group beside weights and KV: PSS of leader, the processes beside it, fork server and a rank, while 8
# streams with prompts of 750 to 960 tokens get 500 each, and the 256 MiB that its blocks may take in the
# memory of the host (docs/performance.md, "Memory of groups"). It was 525 MiB with 49,152 tokens in the
# vocabulary, and 634 with 262,144: 499 MiB and 0.54 KiB a token. The rest is margin: a twelfth, and for the
# logits of 128 sequences half a KiB a token.
#
# Adapters may take `RYZ_ADAPTER_BYTES` of a group, but only those that are asked for do, and most stacks have
# none. So one or two of a small model are counted (rank 16 of SmolLM2 135M takes 20 MiB), and for more the KV
# cache makes room while they come (decision 0083), rather than to be smaller from the start.
ADAPTER_BYTES = min(POOL_BYTES, 32 * 2**20)
GROUP_BYTES, BYTES_OF_A_TOKEN = 540 * 2**20 + ADAPTER_BYTES, 1024
# PSS of a draft model's rank beside weights and KV: the demo model as draft of itself took 169 MiB after 24
# streams, 5 of them weights and at most 32 KV. The rest is margin.
DRAFT_RANK_BYTES = 160 * 2**20
# Of a weight of the largest matrix while it is packed, beside all packed weights; measured with the codes of
# Gemma 3 270M: 1.4, 1.8, 4.0 and 1.7.
_READING_BYTES: dict[Precision, float] = {"codes": 1.5, "int8": 2, "bf16": 4, "fp32": 2}
_PRECISIONS: dict[str, PrecisionChoice] = {one: one for one in get_args(PrecisionChoice)}
KV_TOKENS = 65_536  # of a group, where memory allows; pages are taken only when they are used
MEMORY_SHARE = 0.95  # of the free memory; the rest is for other programs
SERVICES_BYTES = 384 * 2**20  # gateway, router, kvstate, broker and supervisor, if that is more than the rest
# The stores begin with a few MiB. Where memory is short, they are bounded by what KV leaves, but not lower.
LEAST_STORE_BYTES = 128 * 2**20
STORE_OVERHEAD = (
    1.15  # memory of a Redis for each byte of its `maxmemory`: fragments, and copies for its file
)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this machine has.

    Attributes:
        reserved_cores: Of `cores`, those that some groups have for themselves.
        kernels: It has compiled kernels, or can have them.
        store_bytes: The most that the stack's own stores may hold; 0 if it starts none.
        packed_bytes: Packed weights for which the directory that groups map them from has room; 0: groups
            hold copies.
        limit_bytes: What `--memory` gives the stack, where that is less than is free; 0: it is no limit.
    """

    cores: int
    free_bytes: int
    kernels: bool
    store_bytes: int = 0
    packed_bytes: int = 0
    limit_bytes: int = 0
    reserved_cores: int = 0

    @property
    def shared_cores(self) -> int:
        """Cores that groups without reserved ones share."""
        return self.cores - self.reserved_cores

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

    `min_groups` are those that run at any time where models come and go. With `cores` of its own a model's
    groups and threads are given too. Where `kv_cache_tokens` is open, `most_kv_tokens` is the most that is
    chosen. `draft_bytes` is what a draft model takes in each group. The last two settle
    how many blocks layers with a sliding window need.
    """

    groups: int = 0
    min_groups: int = 0
    tensor_parallel: int = 0
    threads: int = 0
    cores: int = 0
    precision: PrecisionChoice = "auto"
    kv_cache_tokens: int = 0
    most_kv_tokens: int = KV_TOKENS
    draft_bytes: int = 0
    token_budget: int = TOKEN_BUDGET
    max_running: int = MAX_RUNNING

    @property
    def steps(self) -> tuple[int, int]:
        """Arguments for `ModelSize.pools`."""
        return self.token_budget, self.max_running


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What the choice for one model depends on, beside the machine.

    Attributes:
        context: The model's context length, in tokens.
    """

    size: ModelSize
    context: int
    given: GivenSizing


def weight_bytes(models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]) -> list[int]:
    """Return the memory of each model's weights, in all of its groups together."""
    shared = share_weights(models, machine, groups)
    return [
        own_weight_bytes(model, machine) * (1 if once else count)
        for model, once, count in zip(models, shared, groups, strict=True)
    ]


def share_weights(models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]) -> list[bool]:
    """Return which models have several groups that hold the weights once.

    Only kernels map packed weights, and only shares that are worth a file. The directory has to have room
    for those of all models, since any of them may be the one that finds it full.
    """
    sizes = [own_weight_bytes(model, machine) for model in models]
    packed = [
        has_kernels(model.size, machine) and size // (model.given.tensor_parallel or 1) >= LEAST_BYTES
        for model, size in zip(models, sizes, strict=True)
    ]
    wanted = sum(size for size, is_packed in zip(sizes, packed, strict=True) if is_packed)
    has_room = wanted <= machine.packed_bytes
    return [has_room and is_packed and count > 1 for is_packed, count in zip(packed, groups, strict=True)]


def loading_bytes(models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]) -> int:
    """Return the memory that all groups take while they load, before there is KV.

    For groups that share weights one packs; what it reads of the largest matrix is beside what it has packed.
    """
    shared = share_weights(models, machine, groups)
    read = sum(reading_bytes(model, machine) for model, once in zip(models, shared, strict=True) if once)
    return sum(weight_bytes(models, machine, groups)) + all_process_bytes(models, groups) + read


def reading_bytes(model: ModelNeeds, machine: MachineFacts) -> int:
    """Return the memory for the largest matrix, that of the output, while it is packed."""
    precision = chosen_precision(model.size, machine, model.given)
    return int(model.size.embedding * _READING_BYTES[precision])


def all_process_bytes(models: Sequence[ModelNeeds], groups: Sequence[int]) -> int:
    """Return the memory of all groups of all models, beside weights and KV."""
    return sum(count * group_bytes(model) for model, count in zip(models, groups, strict=True))


def group_bytes(model: ModelNeeds) -> int:
    """Return the memory of a group beside weights and KV of its model: processes, and a draft model."""
    return process_bytes(model.size) + model.given.draft_bytes


def draft_bytes(size: ModelSize, precision: str, *, kernels: bool) -> int:
    """Return the memory of a draft model in each group: a copy of its weights, its KV cache and its rank.

    Args:
        precision: As the setting has it; one that the workers will refuse counts as `auto`.
    """
    given = _PRECISIONS.get(precision, "auto")
    chosen = chosen_precision(size, MachineFacts(1, 0, kernels), GivenSizing(precision=given))
    pools = size.pools(POOL_TOKENS, READ_TOKENS + MAX_SEQUENCES * FEW_TOKENS, MAX_SEQUENCES)
    return DRAFT_RANK_BYTES + size.weight_bytes(chosen) + size.cache_bytes(pools, chosen)


def process_bytes(size: ModelSize) -> int:
    """Return the memory of a group of a model, beside weights and KV."""
    return GROUP_BYTES + BYTES_OF_A_TOKEN * size.vocabulary


def own_weight_bytes(model: ModelNeeds, machine: MachineFacts) -> int:
    """Return the memory of one copy of a model's weights."""
    return model.size.weight_bytes(chosen_precision(model.size, machine, model.given))


def chosen_precision(size: ModelSize, machine: MachineFacts, given: GivenSizing) -> Precision:
    """The precision that was asked for, or what `auto` stands for."""
    if given.precision == "auto":
        return automatic_precision(size.stored, kernels=has_kernels(size, machine))
    return given.precision


def has_kernels(size: ModelSize, machine: MachineFacts) -> bool:
    """Whether compiled kernels compute this model here: there are none for latent attention."""
    return machine.kernels and not size.latent
