"""Chooses the device and type in which a rank computes, from its config.

Refuses a GPU that does not exist, and a model that does not fit into its memory. The rest of the plain path
gets a `Placement`.
"""

from collections.abc import Mapping
from math import ceil, prod

import torch

from services.worker.engine.checkpoint.memory_check import MemoryShort
from services.worker.engine.checkpoint.model_size import weight_share
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.plain_cache import block_bytes, sliding_bytes
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.sliding_pool import least_blocks, sliding_blocks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def take_device(config: RankConfig) -> Placement:
    """Chooses where this rank computes; a GPU becomes the process's current one.

    Rank r of the leader's host takes GPU r of those in CUDA_VISIBLE_DEVICES; a rank of another host takes the
    first.

    Raises:
        ModelError: Torch finds no GPU, or fewer than ranks on this host; or the type is for GPUs only.
    """
    if config.run.device == "cpu":
        if config.run.dtype == "bf16":
            raise ModelError(
                "dtype=bf16 is for device=cuda, and device=cpu was chosen; set dtype=auto: the kernels keep "
                "weights in the type of their files"
            )
        return Placement()
    if not torch.cuda.is_available():
        raise ModelError(
            f"device=cuda, but torch {torch.__version__} finds no CUDA device; install a CUDA build of torch "
            f"and the driver (docs/gpu.md), or set device=cpu"
        )
    here, count = config.run.local_ranks, torch.cuda.device_count()
    local = config.rank < here
    if local and here > count:
        raise ModelError(
            f"device=cuda with {here} ranks on this host, but torch finds {count} of its GPUs; set "
            f"tensor_parallel={count}, or see what CUDA_VISIBLE_DEVICES hides"
        )
    device = torch.device("cuda", config.rank if local else 0)
    torch.cuda.set_device(device)
    # cuDNN plans each shape anew, which takes tens of milliseconds, and most steps have a new one
    torch.backends.cuda.enable_cudnn_sdp(False)
    return Placement(device, DTYPES["bf16" if config.run.dtype == "auto" else config.run.dtype])


def gpu_id(config: RankConfig) -> str:
    """NVIDIA's id of the current GPU, for NVML; empty on a processor, and not on the leader's host."""
    if config.run.device == "cpu" or config.rank >= config.run.local_ranks:
        return ""
    if not torch.cuda.is_available():
        return ""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""  # None: another vendor's build of torch


def gpu_memory(placement: Placement) -> tuple[int, int]:
    """Free and total bytes of the rank's GPU."""
    free, total = torch.cuda.mem_get_info(placement.device)
    return free, total


def require_gpu_room(
    config: RankConfig,
    shape: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    placement: Placement,
    memory: tuple[int, int],
) -> None:
    """Refuses weights and a KV cache that do not fit on this rank's GPU.

    Args:
        memory: From `gpu_memory`.

    Raises:
        ModelError: The GPU is too small.
        MemoryShort: The GPU is large enough, but too much of its memory is in use.
    """
    weights = sum(prod(stored.shape) for stored in tensors.values()) * placement.dtype.itemsize
    rank, world = config.rank, config.run.tensor_parallel
    weights = ceil(weights * weight_share(shape, range(rank, rank + 1), world))
    blocks = -(-max(1, config.run.kv_cache_tokens) // BLOCK_SIZE)
    cache = blocks * block_bytes(shape, rank, world, placement)
    if any(shape.windows):
        least = least_blocks(max(shape.windows), config.run.token_budget, config.run.max_running)
        if sliding := sliding_blocks(blocks, least):
            cache -= (blocks - sliding) * sliding_bytes(shape, rank, world, placement)
    free, total = memory
    if weights + cache <= free:
        return
    what = f"rank {config.rank}'s share of the weights of {config.run.model} needs {_gib(weights)}"
    remedy = "set a larger tensor_parallel or serve a smaller model"
    if config.run.kv_cache_tokens:
        what += f" and kv_cache_tokens={config.run.kv_cache_tokens} needs {_gib(cache)}"
        remedy = f"set a smaller kv_cache_tokens, {remedy}"
    if weights + cache > total:
        raise ModelError(f"{what}, but {placement.device} has {_gib(total)} in all; {remedy}")
    raise MemoryShort(f"{what}, but {_gib(free)} of {placement.device} are free; {remedy}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
