"""Says what was chosen for a model and a machine, and what was given up and brings it back. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from cli.stack.memory_needs import (
    GivenSizing,
    MachineFacts,
    ModelNeeds,
    chosen_precision,
    group_bytes,
    has_kernels,
    loading_bytes,
    share_weights,
    weight_bytes,
)
from cli.stack.sizing import (
    GROUPS,
    LEAST_GIVEN_TOKENS,
    Sizing,
    least_bytes,
    least_cache_bytes,
    least_tokens,
    missing_bytes,
    sizing_of,
)
from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.engine.precision import HALF_KV

_WORDS = {"bf16": "bf16 weights", "int8": "8-bit weights", "codes": "weights as codes"}


def describe_sizing(sizing: Sizing, size: ModelSize, machine: MachineFacts) -> str:
    """Say in one line what was chosen, and why."""
    stores = f" and {size_words(sizing.store_bytes)} for the stores" if sizing.store_bytes else ""
    return (
        f"{size.parameters / 1e6:.0f} M parameters on {count_words(machine.cores, 'core')}, "
        f"{size_words(machine.free_bytes)} free: {describe_groups_of(sizing, size, machine)}{stores}."
    )


def describe_groups_of(sizing: Sizing, size: ModelSize, machine: MachineFacts) -> str:
    """Say what the groups of a model are, and what memory they take."""
    kv = "fp16" if sizing.precision in HALF_KV else "fp32"
    weights = f"{_stored(size)} weights" if sizing.precision == "fp32" else _WORDS[sizing.precision]
    precision = f"{weights}, {kv} KV (precision {sizing.precision})"
    why = "" if has_kernels(size, machine) else " (no compiled kernels here)"
    groups = (
        "two groups, so that streams survive one"
        if sizing.groups == GROUPS
        else count_words(sizing.groups, "group")
    )
    sliding = f" ({sizing.sliding_tokens:,} in layers with a sliding window)" if sizing.sliding_tokens else ""
    shape = f"{count_words(sizing.tensor_parallel, 'rank')} of {count_words(sizing.threads, 'thread')}"
    once = ", weights once for both" if sizing.shares_weights and sizing.groups == GROUPS else ""
    once = once or (", weights once for all" if sizing.shares_weights else "")
    return (
        f"{groups}, each {shape}; {precision}{why}{once}; "
        f"KV for {sizing.kv_cache_tokens:,} tokens a group{sliding}; "
        f"at most {size_words(sizing.needed_bytes)} of memory for the groups"
    )


def describe_losses(
    sizing: Sizing, size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing
) -> str:
    """Say in one line what was given up for want of memory, and what brings it back; empty if nothing was."""
    sentences = []
    if sizing.groups < GROUPS and not given.groups:
        remedies = [*_remedies(size, context, machine, given, GROUPS)]
        sentences.append(
            "One group only, since two do not fit: running streams end if it fails. Room for the second: "
            f"{' or '.join(remedies)}."
        )
    if sizing.kv_cache_tokens < given.most_kv_tokens and not given.kv_cache_tokens:
        more = sizing_of(size, context, machine, given, 1) if sizing.groups > 1 else None
        remedy = ""
        if more is not None and more.kv_cache_tokens > sizing.kv_cache_tokens:
            remedy = f" `--groups 1` leaves room for {more.kv_cache_tokens:,}; then streams end if it fails."
        bound = "no request may have more" if sizing.kv_cache_tokens < context else "others wait for room"
        sentences.append(
            f"KV for {sizing.kv_cache_tokens:,} tokens in place of {given.most_kv_tokens:,}: all requests "
            f"of a group share them, and {bound}.{remedy}"
        )
    return " ".join(sentences)


def describe_short_cache(tokens: int, context: int) -> str:
    """Say that requests get less than the model's context, if the KV cache that was asked for holds less.

    Args:
        tokens: As they were given; 0 leaves it open.
    """
    if not 0 < tokens < context:
        return ""
    return (
        f"The KV cache of a group holds {tokens:,} tokens, fewer than the model's context of {context:,}: "
        "no request may have more, its prompt and answer together. "
        f"`--kv-cache-tokens {context}` or more gives a request the whole context."
    )


def refuse_tiny_cache(tokens: int, context: int) -> str:
    """Say why a KV cache is too small for any answer, and what to do; empty if it is not.

    Args:
        tokens: As they were given; 0 leaves it open.
    """
    least = min(LEAST_GIVEN_TOKENS, context)
    if not 0 < tokens < least:
        return ""
    return (
        f"A KV cache of {tokens} tokens is too small for an answer: the prompt and the answer of a request "
        f"share it. Give `--kv-cache-tokens` (RYZ_KV_CACHE_TOKENS) {least} or more; {context} hold the "
        "model's whole context, and without the option the stack takes what fits."
    )


def refusal(size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing) -> str:
    """Say why a model does not fit, and what to do."""
    groups, needs = given.groups or 1, ModelNeeds(size, context, given)
    tokens = given.kv_cache_tokens or least_tokens(context, given)
    weights = size_words(size.weight_bytes(chosen_precision(size, machine, given)))
    kv = f"{size_words(least_cache_bytes(needs, machine))} for KV of {tokens:,} tokens"
    what = count_words(groups, "group").capitalize()
    (needed,) = least_bytes([needs], machine, [groups])
    if share_weights([needs], machine, [groups])[0]:
        parts = f"{weights} for weights, which they share, and each {kv}"
    else:
        parts = f"{'each ' if groups > 1 else ''}{weights} for weights, {kv}"
    loading = loading_bytes([needs], machine, [groups])
    packing = ""
    if loading > needed:
        packing = f"While one of them packs the weights, they need {size_words(loading)}. "
    processes = processes_words(needs)
    stores = f" and the stores {size_words(machine.least_store_bytes)}" if machine.least_store_bytes else ""
    return (
        f"The model does not fit into {room_words(machine)}. "
        f"{what} would need {size_words(needed)}: {parts} and {processes}. {packing}"
        f"{free_words(machine)}, of which the "
        f"other services need {size_words(machine.reserve_bytes)}{stores}. "
        f"What helps: {' or '.join(_remedies(size, context, machine, given, groups))}."
    )


def _remedies(
    size: ModelSize, context: int, machine: MachineFacts, given: GivenSizing, groups: int
) -> Iterator[str]:
    """Name what makes so many groups fit, each by itself."""

    def fits(changed: GivenSizing, groups: int = groups) -> bool:
        return sizing_of(size, context, machine, changed, groups) is not None

    precision = chosen_precision(size, machine, given)
    if (
        precision in {"fp32", "bf16"}
        and has_kernels(size, machine)
        and fits(replace(given, precision="int8"))
    ):
        yield "`--precision int8`"
    fewer = next((count for count in range(given.groups - 1, 0, -1) if fits(given, count)), 0)
    if fewer:
        yield f"`--groups {fewer}`"
    if given.kv_cache_tokens:
        weights = sum(weight_bytes([ModelNeeds(size, context, given)], machine, [groups]))
        room = (
            machine.room_bytes
            - weights
            - groups * group_bytes(ModelNeeds(size, context, given))
            - machine.least_store_bytes
        )
        tokens = size.fitting_tokens(room // groups, precision, *given.steps)
        if tokens >= least_tokens(context, replace(given, kv_cache_tokens=0)):
            yield f"`--kv-cache-tokens` (RYZ_KV_CACHE_TOKENS) of {tokens:,} or less"
    if machine.store_bytes and sizing_of(size, context, replace(machine, store_bytes=0), given, groups):
        yield "`--redis-url` with a Redis of another machine"
    missing = missing_bytes([ModelNeeds(size, context, given)], machine, [groups])
    yield more_words(missing, machine)
    yield "a smaller model"


def processes_words(model: ModelNeeds) -> str:
    """Return what a group takes beside weights and KV, and for what."""
    draft = " and its draft model" if model.given.draft_bytes else ""
    return f"{size_words(group_bytes(model))} for processes{draft}"


def room_words(machine: MachineFacts) -> str:
    """Return what models have to fit into."""
    return "what `--memory` gives the stack" if machine.limit_bytes else "the memory that is free"


def free_words(machine: MachineFacts) -> str:
    """Return the beginning of a sentence about the memory that there is."""
    if not machine.limit_bytes:
        return f"Free are {size_words(machine.free_bytes)}"
    rest = machine.limit_bytes - machine.free_bytes
    beside = f", {size_words(machine.free_bytes)} beside the stores" if rest else ""
    return f"`--memory` gives the stack {size_words(machine.limit_bytes)}{beside}"


def more_words(missing: int, machine: MachineFacts) -> str:
    """Return how much more memory is needed, and whose."""
    return f"{size_words(missing)} more {'with `--memory`' if machine.limit_bytes else 'free memory'}"


def _stored(size: ModelSize) -> str:
    return "fp32" if size.stored_bytes == 4 else "16-bit"


def count_words(count: int, what: str) -> str:
    """Return a number with its noun, which takes an s."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def size_words(count: int) -> str:
    """Return bytes in GiB, or in MiB rounded up."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{ceil(count / 2**20)} MiB"
