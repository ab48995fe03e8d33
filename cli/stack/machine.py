"""Chooses what the options of `ryz up` leave open: examines model and machine, and has `sizing.py` choose."""

import os
from dataclasses import replace
from pathlib import Path

from cli.console import fail
from cli.stack.options import UpOptions
from cli.stack.sizing import (
    MAX_RUNNING,
    TOKEN_BUDGET,
    DoesNotFit,
    GivenSizing,
    MachineFacts,
    Sizing,
    choose_sizing,
)
from cli.stack.sizing_text import (
    describe_losses,
    describe_short_cache,
    describe_sizing,
    refusal,
    refuse_tiny_cache,
)
from services.worker.engine.checkpoint.codes.sizes import mean_bytes
from services.worker.engine.checkpoint.model_size import FP16_BYTES, FP32_BYTES, ModelSize, model_size
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native import build
from services.worker.engine.precision import require_served, stored_precision
from shared.host.cores_and_memory import available_bytes, total_bytes, usable_cores

NULL_GROUPS = NULL_RANKS = 2  # the null engine needs neither memory nor cores


def settle_sizing(options: UpOptions) -> tuple[UpOptions, str]:
    """Fill in groups, ranks, threads, precision and KV room; on GPUs the workers settle the last two.

    Returns:
        The options, with a line that says what was chosen and why, one that says what was given up, and
        one for a KV cache that holds less than the context; empty without a model.

    Raises:
        CommandError: The model does not fit this machine, with the figures; or its KV cache fits no answer.
        ModelError: It cannot be had in the precision that was chosen.
    """
    if options.model is None or options.engine == "null":
        groups, ranks = options.groups or NULL_GROUPS, options.tensor_parallel or NULL_RANKS
        settled = replace(options, groups=groups, tensor_parallel=ranks)
        return replace(settled, threads=options.threads or 1), ""
    config = read_config(options.model)
    context, tokens = config.context_length, options.kv_cache_tokens or 0
    if problem := refuse_tiny_cache(tokens, context):
        fail(problem, 2)
    short = describe_short_cache(tokens, context)
    if os.environ.get("RYZ_DEVICE") == "cuda":
        settled, line = _settle_on_gpus(options)
        return settled, "\n".join(filter(None, [line, short]))
    machine = machine_facts(options, config)
    size = measure_model(options.model, kernels=machine.kernels)
    if options.precision != "auto":
        require_served(options.precision, size.stored, str(options.model))
    given = given_sizing(options)
    try:
        sizing = choose_sizing(size, context, machine, given)
    except DoesNotFit:
        fail(refusal(size, context, machine, given), 2)
    losses = describe_losses(sizing, size, context, machine, given)
    lines = [describe_sizing(sizing, size, machine), losses, short]
    return _with(options, sizing), "\n".join(filter(None, lines))


def _settle_on_gpus(options: UpOptions) -> tuple[UpOptions, str]:
    """One group, since two would take the same GPUs; each worker sees itself what fits there."""
    groups, ranks = options.groups or 1, options.tensor_parallel or 1
    threads = options.threads or max(1, usable_cores() // (groups * ranks))
    tokens = options.kv_cache_tokens or 0
    settled = replace(options, groups=groups, tensor_parallel=ranks, threads=threads, kv_cache_tokens=tokens)
    room = f"KV for {tokens:,} tokens" if tokens else "KV in a share of what is free there"
    text = f"On GPUs: groups {groups}, ranks of each {ranks}, a GPU for each rank; {room}."
    if groups == 1 and not options.groups:
        text += "\nOne group only: running streams end if it fails. With GPUs for another one: `--groups 2`."
    return settled, text


def given_sizing(options: UpOptions) -> GivenSizing:
    """Return what options and the settings of the workers say."""
    return GivenSizing(
        groups=options.groups,
        tensor_parallel=options.tensor_parallel,
        threads=options.threads,
        precision=options.precision,
        kv_cache_tokens=options.kv_cache_tokens or 0,
        token_budget=_setting("RYZ_TOKEN_BUDGET", TOKEN_BUDGET),
        max_running=_setting("RYZ_MAX_RUNNING", MAX_RUNNING),
    )


def measure_model(path: Path, *, kernels: bool = True) -> ModelSize:
    """Count a model's parameters and bytes, from its config and the sizes of its files.

    Without kernels all weights become fp32.

    Raises:
        ModelError: It cannot be served.
    """
    size = model_size(read_config(path))
    tensors = stored_tensors(path).values()
    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    each = sum(file.stat().st_size for file in files) / max(1, size.parameters)
    # weights of fewer than 16 bits are unpacked to floats when they are read
    stored_bytes = FP16_BYTES if kernels and 1.5 < each < 3 else FP32_BYTES
    return replace(
        size, stored_bytes=stored_bytes, stored=stored_precision(tensors), code_bytes=mean_bytes(tensors)
    )


def machine_facts(options: UpOptions, config: ModelConfig | None = None) -> MachineFacts:
    """Look at this machine, and at whether it has kernels for the model."""
    stores = 0 if options.redis_url else int(total_bytes() * options.redis_memory_share)
    kernels = options.kernels != "plain" and any(build.find(target) for target in build.targets()[:1])
    kernels = kernels and not (config is not None and config.latent)
    return MachineFacts(usable_cores(), available_bytes(), kernels, stores)


def _setting(name: str, default: int) -> int:
    """A setting of the workers; a value that they will refuse counts as the default here."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() and 0 < int(value) < 2**20 else default


def _with(options: UpOptions, sizing: Sizing) -> UpOptions:
    stores = sizing.store_bytes
    if options.kv_cache_tokens == 0:  # given: the workers take a share of the free memory, known only then
        stores = min(stores, available_bytes() // 4)
    return replace(
        options,
        groups=sizing.groups,
        tensor_parallel=sizing.tensor_parallel,
        threads=sizing.threads,
        precision=sizing.precision,
        # 0 was given: the worker takes a share of the free memory
        kv_cache_tokens=0 if options.kv_cache_tokens == 0 else sizing.kv_cache_tokens,
        redis_memory_share=stores / total_bytes() if stores else options.redis_memory_share,
    )
