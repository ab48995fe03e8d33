"""Checks that a model fits into this machine's memory before it is loaded."""

import errno
from collections.abc import Mapping
from math import ceil, prod
from pathlib import Path

import torch

from services.worker.engine import int8
from services.worker.engine.checkpoint.codes.sizes import bytes_of
from services.worker.engine.checkpoint.model_size import weight_share
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.checkpoint.tensor_table import file_names
from services.worker.engine.cold_zone import SCALE_BYTES, ColdZone, cold_zone
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.precision import HALF_KV
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.rank_protocol.sliding_pool import least_blocks, sliding_blocks
from shared.host.cores_and_memory import available_bytes, total_bytes


class MemoryShort(ModelError):
    """The model would fit into this machine, but not beside what runs on it now."""


def ran_out(error: BaseException) -> bool:
    """Whether an error is about missing memory.

    On a CPU torch raises `RuntimeError`, with the text of its allocator or of the exception of C++. A mapping
    that cannot be had is an `OSError`.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, SystemError):  # numpy's functions set no `MemoryError` when a buffer cannot be had
        return "ufunc" in str(error) and "returned NULL without setting an exception" in str(error)
    said = str(error) if isinstance(error, RuntimeError) else ""
    return "allocate memory" in said or "bad_alloc" in said


def weight_bytes(
    tensors: Mapping[str, StoredTensor],
    precision: str,
    *,
    native: bool,
    tied: bool,
    embedding: str = "model.embed_tokens.weight",
) -> int:
    """Bytes of the weights in all ranks together, without the norms that each rank repeats.

    Args:
        precision: `int8` packs all matrices but the embedding in 8 bits, `bf16` in bf16; `codes` holds all
            quantized ones as codes.
        native: Matrices keep their stored type otherwise, with a packed output matrix beside the embedding;
            without kernels all is fp32.
        tied: The output matrix is the embedding.
        embedding: What the files call the embedding.
    """
    total = 0
    for name, stored in tensors.items():
        count = prod(stored.shape)
        own = stored.item_bytes
        matrix = native and len(stored.shape) > 1
        packed = count * own
        if matrix and precision == "int8":  # of each expert, if they are in one tensor
            packed = int8.packed_bytes(*stored.shape[-2:]) * prod(stored.shape[:-2])
        elif matrix and precision == "bf16":
            packed = count * 2
        elif matrix and precision == "codes":  # a tied table is there once
            total += ceil(count * bytes_of(stored))
            continue
        if name == embedding:
            total += count * (own if native else 4)
            total += packed if native and tied else 0
        elif matrix:
            total += packed
        else:
            total += count * 4
    return total


def cache_bytes(
    shape: ModelConfig,
    world: int,
    tokens: int,
    kv_dtype: str = "fp32",
    *,
    cold: ColdZone | None = None,
    max_running: int = 0,
    num_sliding: int = 0,
) -> int:
    """Bytes of the keys and values of so many tokens in all ranks together.

    With a cold zone blocks are compressed, except the last ones of `max_running` sequences. Layers with a
    window may have `num_sliding` blocks of their own.
    """
    heads, values = shape.held_kv_heads(world, world), shape.cached_values // shape.num_layers
    blocks = -(-tokens // BLOCK_SIZE)
    each = 2 if kv_dtype == "fp16" else 4
    # bytes of a block, layer and head: in full precision, and compressed
    full, compressed = each * values * BLOCK_SIZE, values * BLOCK_SIZE + 2 * SCALE_BYTES
    cold_layers = cold.layers if cold else (False,) * shape.num_layers
    slots = min(blocks, cold.window_slots(max_running)) if cold else 0
    total = 0
    for window, is_cold in zip(shape.windows, cold_layers, strict=True):
        count = num_sliding if window and num_sliding else blocks
        total += compressed * count + full * slots if is_cold else full * count
    return heads * total


def all_weight_bytes(
    run: EngineRunConfig, shape: ModelConfig, tensors: Mapping[str, StoredTensor], *, native: bool
) -> int:
    """Bytes of the weights that the model uses, in all ranks together; see `weight_bytes`."""
    views = file_names(Path(run.model), shape).views(shape, tensors)
    used = {view.stored for view in views.values()}
    return weight_bytes(
        {name: stored for name, stored in tensors.items() if name in used},
        run.precision,
        native=native,
        tied=shape.tied_embeddings,
        embedding=views["model.embed_tokens.weight"].stored,
    )


def least_tokens(run: EngineRunConfig, shape: ModelConfig) -> int:
    """The part of the KV cache that the longest request needs, in tokens; no limit of the cache is lower."""
    return min(run.kv_cache_tokens, shape.context_length) or BLOCK_SIZE


def require_room(
    run: EngineRunConfig,
    shape: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    *,
    native: bool,
    mapped: bool = False,
    restarted: bool = False,
) -> None:
    """Refuses weights and a KV cache that do not fit, for the ranks on the leader's machine.

    Args:
        mapped: The packed weights lie in files. They need no memory of this group: the system has their pages
            already, for another group, or takes them back when memory is short.
        restarted: See `RankConfig`; only kernels take no more of a KV cache than is used.

    Raises:
        ModelError: The machine is too small.
        MemoryShort: The machine is large enough, but too much of its memory is in use.
    """
    weights = all_weight_bytes(run, shape, tensors, native=native)
    half = run.kv_dtype == "fp16" or (run.kv_dtype == "auto" and run.precision in HALF_KV)
    cold = cold_zone(run, shape.num_layers)

    def cache_of(tokens: int) -> int:
        sliding = 0
        if any(shape.windows):
            least = least_blocks(max(shape.windows), run.token_budget, run.max_running)
            sliding = sliding_blocks(-(-tokens // BLOCK_SIZE), least)
        count = cache_bytes(
            shape,
            run.tensor_parallel,
            tokens,
            "fp16" if half else "fp32",
            cold=cold,
            max_running=run.max_running,
            num_sliding=sliding,
        )
        held = shape.held_kv_heads(run.local_ranks, run.tensor_parallel)
        return count * held // shape.held_kv_heads(run.tensor_parallel, run.tensor_parallel)

    tokens = run.kv_cache_tokens or BLOCK_SIZE
    cache = cache_of(tokens)
    now = cache_of(least_tokens(run, shape)) if native and restarted else cache
    here, world = run.local_ranks, run.tensor_parallel
    weights = ceil(weights * weight_share(shape, range(here), world))
    free, total = available_bytes(), total_bytes()
    if weights + cache <= total and now + (0 if mapped else weights) <= free:
        return
    what = f"the weights of {run.model} need {_size(weights)}"
    remedy = "give the worker more memory or serve a smaller model"
    if native and run.precision != "int8":
        remedy = f"set precision=int8, {remedy}"
    if run.kv_cache_tokens:
        needed = _size(now if weights + cache <= total else cache)
        what += f" and kv_cache_tokens={run.kv_cache_tokens} needs {needed}"
        remedy = f"set a smaller kv_cache_tokens, {remedy}"
    if weights + cache > total:
        raise ModelError(f"{what}, but there are {_size(total)} of memory in all; {remedy}")
    raise MemoryShort(f"{what}, but {_size(free)} of memory are free; {remedy}")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
