"""Chooses groups, ranks, threads, precision, KV room and the stores' bound for models on this machine.

Pure. Everything may grow to its bound at the same time: weights and processes (`memory_needs.py`), the full
KV of all groups and both stores fit beside each other, so that no rank is killed for want of memory. What
does not fit is refused; `sizing_text.py` says why, and what to do.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from cli.stack.memory_needs import (
    STORE_OVERHEAD,
    GivenSizing,
    MachineFacts,
    ModelNeeds,
    all_process_bytes,
    chosen_precision,
    group_bytes,
    loading_bytes,
    own_weight_bytes,
    share_weights,
    weight_bytes,
)
from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import Precision

GROUPS = 2  # with two, streams survive the loss of one
LEAST_KV_TOKENS = 2_048
LEAST_GIVEN_TOKENS = 128  # below it a chat template and a short question leave no room for an answer
STORE_PART = 0.25  # of what weights and processes leave; KV caches get the rest first


class DoesNotFit(Exception):
    """The model does not fit this machine as asked; `sizing_text.refusal` has the words."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What was chosen.

    Attributes:
        tensor_parallel: Ranks of each.
        threads: Threads of each rank.
        kv_cache_tokens: KV cache of each group.
        needed_bytes: Memory of all groups when their KV caches are full.
        weight_bytes: The part of it that weights take.
        shares_weights: All groups hold the weights once; False: a copy each, or there is one group.
        sliding_tokens: The part of the KV cache's tokens that layers with a sliding window keep; 0: all.
        store_bytes: The most that the stores may hold together.
    """

    groups: int
    tensor_parallel: int
    threads: int
    precision: Precision
    kv_cache_tokens: int
    needed_bytes: int
    weight_bytes: int
    shares_weights: bool = False
    sliding_tokens: int = 0
    store_bytes: int = 0


def choose_sizing(size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing) -> Sizing:
    """Choose what is open for a model that has the machine for itself; see `choose_sizings`.

    Raises:
        DoesNotFit: Not even the smallest choice fits.
    """
    return choose_sizings([ModelNeeds(size, context, given)], machine)[0]


def sizing_of(
    size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing, groups: int
) -> Sizing | None:
    """Choose for so many groups of a model that has the machine for itself; None if they do not fit."""
    sizings = sizings_of([ModelNeeds(size, context, given)], machine, [groups])
    return sizings[0] if sizings else None


def choose_sizings(models: Sequence[ModelNeeds], machine: MachineFacts) -> list[Sizing]:
    """Choose what is open, for all models of a stack together.

    Two groups of one rank for each model, the cores shared among all; the precision of the files, if kernels
    have it. Of the memory that is left after weights and processes the stores get a quarter, KV caches as
    much as they want of the rest, and the stores what these leave.

    Models give up their second groups one after another: where several models have more ranks than there
    are cores, the last one first; where memory is short, the one whose group takes most.

    Raises:
        DoesNotFit: Not even the smallest choice fits.
    """
    counts = groups_for_cores(models, machine.shared_cores)
    while True:
        sizings = sizings_of(models, machine, counts)
        if sizings is not None:
            return sizings
        open_ones = [n for n, model in enumerate(models) if counts[n] > 1 and not model.given.groups]
        if not open_ones:
            raise DoesNotFit
        shared = share_weights(models, machine, counts)
        largest = max(open_ones, key=lambda n: second_group_bytes(models[n], machine, shares=shared[n]))
        counts[largest] -= 1


def groups_for_cores(models: Sequence[ModelNeeds], cores: int) -> list[int]:
    """Return how many groups each model gets if memory allows.

    Args:
        cores: Those that groups share.
    """
    counts = [model.given.groups or GROUPS for model in models]
    if len(models) == 1:
        return counts
    for number in reversed(range(len(models))):
        if _sharing_ranks(models, counts) > cores and not models[number].given.groups:
            counts[number] = 1
    return counts


def _sharing_ranks(models: Sequence[ModelNeeds], groups: Sequence[int]) -> int:
    """The ranks of all groups that have no cores of their own."""
    counted = zip(groups, models, strict=True)
    return sum(
        count * (model.given.tensor_parallel or 1) for count, model in counted if not model.given.cores
    )


def sizings_of(
    models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]
) -> list[Sizing] | None:
    """Choose for so many groups of each model; None if they do not fit."""
    if loading_bytes(models, machine, groups) > machine.room_bytes:
        return None
    weights, shared = weight_bytes(models, machine, groups), share_weights(models, machine, groups)
    rest = machine.room_bytes - sum(weights) - all_process_bytes(models, groups)
    wanted = int(min(machine.store_bytes * STORE_OVERHEAD, max(0, rest) * STORE_PART))
    for stores in (max(machine.least_store_bytes, wanted), machine.least_store_bytes):
        tokens = kv_tokens(models, machine, groups, rest - stores)
        caches = [_cache_bytes(model, machine, each) for model, each in zip(models, tokens, strict=True)]
        taken = sum(count * cache for count, cache in zip(groups, caches, strict=True))
        enough = all(
            each >= least_tokens(model.context, model.given)
            for model, each in zip(models, tokens, strict=True)
        )
        if enough and taken + stores <= rest:
            ranks = [model.given.tensor_parallel or 1 for model in models]
            threads = max(1, machine.shared_cores // max(1, _sharing_ranks(models, groups)))
            store_bytes = min(machine.store_bytes, int((rest - taken) / STORE_OVERHEAD))
            return [
                Sizing(
                    groups=groups[n],
                    tensor_parallel=ranks[n],
                    threads=model.given.threads or threads,
                    precision=chosen_precision(model.size, machine, model.given),
                    kv_cache_tokens=tokens[n],
                    needed_bytes=weights[n] + groups[n] * (group_bytes(model) + caches[n]),
                    weight_bytes=weights[n],
                    shares_weights=shared[n],
                    sliding_tokens=model.size.pools(tokens[n], *model.given.steps).num_sliding * BLOCK_SIZE,
                    store_bytes=store_bytes,
                )
                for n, model in enumerate(models)
            ]
    return None


def kv_tokens(
    models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int], room: int
) -> list[int]:
    """Divide memory into KV caches, in tokens of a group of each model.

    All groups get the same bytes, but none more than it wants, and none less than the fewest tokens with
    which it is useful.
    """
    precisions = [chosen_precision(model.size, machine, model.given) for model in models]
    most = [
        _cache_bytes(model, machine, model.given.kv_cache_tokens or model.given.most_kv_tokens)
        for model in models
    ]
    least = [
        _cache_bytes(model, machine, model.given.kv_cache_tokens or least_tokens(model.context, model.given))
        for model in models
    ]

    def shares(level: int) -> list[int]:
        return [min(max(level, low), high) for low, high in zip(least, most, strict=True)]

    def taken(level: int) -> int:
        return sum(count * share for count, share in zip(groups, shares(level), strict=True))

    level = bisect_right(range(max(most) + 1), max(0, room), key=taken) - 1
    return [
        model.given.kv_cache_tokens
        or min(model.given.most_kv_tokens, model.size.fitting_tokens(share, precision, *model.given.steps))
        for model, precision, share in zip(models, precisions, shares(level), strict=True)
    ]


def missing_bytes(models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]) -> int:
    """Free memory that so many groups of each model lack, with the least KV."""
    needed = sum(least_bytes(models, machine, groups)) + machine.least_store_bytes
    needed = max(needed, loading_bytes(models, machine, groups))
    return max(0, needed + machine.reserve_bytes - machine.free_bytes)


def least_bytes(models: Sequence[ModelNeeds], machine: MachineFacts, groups: Sequence[int]) -> list[int]:
    """Memory of all groups of each model, with the least KV."""
    weights = weight_bytes(models, machine, groups)
    return [
        weights[n] + groups[n] * (group_bytes(model) + least_cache_bytes(model, machine))
        for n, model in enumerate(models)
    ]


def second_group_bytes(model: ModelNeeds, machine: MachineFacts, *, shares: bool) -> int:
    """Memory that a model's second group takes, with the least KV."""
    own = 0 if shares else own_weight_bytes(model, machine)
    return own + group_bytes(model) + least_cache_bytes(model, machine)


def least_cache_bytes(model: ModelNeeds, machine: MachineFacts) -> int:
    """Memory of the KV cache that a group needs in any case."""
    tokens = model.given.kv_cache_tokens or least_tokens(model.context, model.given)
    return _cache_bytes(model, machine, tokens)


def least_tokens(context: int, given: GivenSizing) -> int:
    """The fewest tokens of KV with which a group is useful."""
    least = min(LEAST_KV_TOKENS, context)
    return min(least, given.kv_cache_tokens or least)


def _cache_bytes(model: ModelNeeds, machine: MachineFacts, tokens: int) -> int:
    """Memory of a KV cache of so many tokens."""
    pools = model.size.pools(tokens, *model.given.steps)
    return model.size.cache_bytes(pools, chosen_precision(model.size, machine, model.given))
