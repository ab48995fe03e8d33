"""Chooses how a rank computes, compiled kernels or plain torch, and loads its weights for that.

All ranks of a group compute in the same way. `auto` uses the kernels where they run, and logs the reason
where they do not; a way chosen by name that is not available is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import structlog
import torch

from services.worker.engine.checkpoint.memory_check import require_room
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import cold_zone
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native import cache as native_cache
from services.worker.engine.native.build import TARGETS, NoKernels, targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.layers.unsupported import unsupported
from services.worker.engine.native.library import KernelLibrary, kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain import plain_cache
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.cuda_graphs import CudaCapture
from services.worker.engine.plain.device import gpu_memory, require_gpu_room, take_device
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.precision import HALF_KV, automatic_precision, require_served, stored_precision
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.shared_weights import SharedWeights, shared_weights
from services.worker.rank_protocol.page_policy import PagePolicy, page_policy
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from shared.host.cores_and_memory import usable_cores

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ComputeBackend:
    """A rank's loaded weights.

    Attributes:
        name: Its name in logs and tables.
        why_plain: Why it is not the kernels that compute; empty: they do, or there are none for the device.
        block_bytes: Memory of a KV block on this rank, in all layers that share the blocks.
        start: Allocates a cache of those sizes, and returns what computes with it.
        kv_format: As in `EngineInfo`.
        placement: Device and type of the weights.
        hot_bytes: Memory of the recent window beside the blocks.
        sliding_bytes: Memory of a KV block in the layers with a sliding window, if these can have a pool of
            their own; it is a part of `block_bytes`, and 0 if they cannot.
        precision: Of the matrices; on a GPU `fp32`, since the setting `dtype` decides there.
    """

    name: str
    block_bytes: int
    start: Callable[[PoolSizes], Compute]
    kv_format: str = "fp32"
    placement: Placement = CPU
    hot_bytes: int = 0
    sliding_bytes: int = 0
    why_plain: str = ""
    precision: Precision = "fp32"

    def cache_bytes(self, sizes: PoolSizes) -> int:
        """Memory of a KV cache of those sizes."""
        saved = (sizes.num_blocks - sizes.num_sliding) * self.sliding_bytes if sizes.num_sliding else 0
        return sizes.num_blocks * self.block_bytes - saved + self.hot_bytes


def shared_kernels(config: RankConfig) -> KernelLibrary | None:
    """The kernels for collectives in shared memory; None if there are none or `plain` was chosen."""
    try:
        return None if config.run.kernels == "plain" else _chosen_kernels(config)
    except NoKernels:
        return None  # `load_backend` logs the reason


def load_backend(
    config: RankConfig, shape: ModelConfig, checkpoint: Checkpoint, collectives: Collectives
) -> ComputeBackend:
    """Loads this rank's share as the config says.

    Raises:
        ModelError: The config does not fit the files or the number of ranks, or this machine cannot compute
            so.
    """
    pages = _pages(config)
    backend = _load_backend(config, shape, checkpoint, collectives)
    if pages is None:
        return backend
    return replace(
        backend,
        name=f"{backend.name}, attention {pages}",
        kv_format=f"{backend.kv_format}:{pages.format}",  # later layers' keys and values depend on it
    )


def _pages(config: RankConfig) -> PagePolicy | None:
    try:
        return page_policy(config.run.attention)
    except ValueError as error:
        raise ModelError(f"attention={config.run.attention}: {error}") from error


def _load_backend(
    config: RankConfig, shape: ModelConfig, checkpoint: Checkpoint, collectives: Collectives
) -> ComputeBackend:
    placement = take_device(config)
    if placement.on_gpu:
        return _load_gpu(config, shape, checkpoint, collectives, placement)
    native, why_plain = find_kernels(config, shape)
    # the same on all ranks, since they add up each other's sums
    native_everywhere = collectives.broadcast(b"native" if native else b"plain") == b"native"
    if native_everywhere and native is None:
        raise ModelError(
            "rank 0 computes with the native kernels, and this rank's machine cannot; set kernels=plain"
        )
    open_source(checkpoint, shape, collectives)  # refuses contradicting files before memory is checked
    config = _with_precision(config, checkpoint, kernels_compute=native_everywhere)
    packed = None
    if native_everywhere and native is not None and config.run.packed_dir:
        packed = shared_weights(native, config.run, shape, checkpoint, collectives.world)
    if config.rank == 0:
        require_room(
            config.run,
            shape,
            checkpoint.table.tensors,
            native=native_everywhere,
            mapped=packed is not None and packed.have_files(config.run.local_ranks),
            restarted=config.restarted,
        )
    if not native_everywhere or native is None:
        model, rank, world = Decoder(checkpoint, shape, collectives), collectives.rank, collectives.world
        return ComputeBackend(
            "plain",
            plain_cache.block_bytes(shape, rank, world),
            lambda sizes: PlainCompute(
                model, KVCache(shape, sizes, rank, world), tiled=True, pages=_pages(config)
            ),
            plain_cache.kv_format(shape),
            sliding_bytes=plain_cache.sliding_bytes(shape, rank, world),
            why_plain=why_plain or "rank 0 has no kernels",
        )
    return _load_native(native, config, shape, checkpoint, collectives, packed=packed)


def _with_precision(config: RankConfig, checkpoint: Checkpoint, *, kernels_compute: bool) -> RankConfig:
    """The config with a precision in place of `auto`.

    Raises:
        ModelError: The files, or the kernels, do not have the precision that was chosen.
    """
    stored = stored_precision(checkpoint.table.tensors.values())
    if config.run.precision != "auto":
        require_served(config.run.precision, stored, config.run.model)
        return config
    chosen = automatic_precision(stored, kernels=kernels_compute)
    return msgspec.structs.replace(config, run=replace(config.run, precision=chosen))


def _load_gpu(
    config: RankConfig,
    shape: ModelConfig,
    checkpoint: Checkpoint,
    collectives: Collectives,
    placement: Placement,
) -> ComputeBackend:
    refuse_for_gpu(config, placement)
    open_source(checkpoint, shape, collectives)  # refuses contradicting files before memory is checked
    require_gpu_room(config, shape, checkpoint.table.tensors, placement, gpu_memory(placement))
    model = Decoder(checkpoint, shape, collectives, placement)

    def start(sizes: PoolSizes) -> Compute:
        cache = KVCache(shape, sizes, collectives.rank, collectives.world, placement)
        return PlainCompute(model, cache, CudaCapture(placement.device), pages=_pages(config))

    return ComputeBackend(
        f"plain cuda {placement.format}",
        plain_cache.block_bytes(shape, collectives.rank, collectives.world, placement),
        start,
        plain_cache.kv_format(shape, placement),
        placement,
        sliding_bytes=plain_cache.sliding_bytes(shape, collectives.rank, collectives.world, placement),
    )


def refuse_for_gpu(config: RankConfig, placement: Placement) -> None:
    """Refuses settings that were chosen by name and do not exist on a GPU.

    Raises:
        ModelError: There is such a setting.
    """
    chosen = [f"precision={config.run.precision}"] * (config.run.precision != "auto")
    chosen += [f"kernels={config.run.kernels}"] * (config.run.kernels not in {"auto", "plain"})
    chosen += [f"kv_cold={config.run.kv_cold}"] * (config.run.kv_cold != "none")
    if chosen:
        raise ModelError(f"{chosen[0]} is for CPUs, and device=cuda was chosen; drop one of the two")
    if config.run.kv_dtype not in {"auto", placement.format}:
        raise ModelError(
            f"kv_dtype={config.run.kv_dtype} with device=cuda, where the KV cache has the type of the "
            f"weights, {placement.format}; set kv_dtype=auto, or dtype=fp32"
        )


def _load_native(
    native: KernelLibrary,
    config: RankConfig,
    shape: ModelConfig,
    checkpoint: Checkpoint,
    collectives: Collectives,
    *,
    packed: SharedWeights | None,
) -> ComputeBackend:
    cold = cold_zone(config.run, shape.num_layers)
    source = open_source(checkpoint, shape, collectives)
    precision = config.run.precision
    assert precision != "auto"  # see `_with_precision`

    def pack() -> NativeWeights:
        return NativeWeights.load(source, shape, native, precision)

    weights = pack() if packed is None else packed.load(shape, collectives, pack)
    half = config.run.kv_dtype == "fp16" or (config.run.kv_dtype == "auto" and precision in HALF_KV)
    kv_dtype = torch.float16 if half else torch.float32
    spin = config.run.tensor_parallel * config.run.threads <= usable_cores()
    options = NativeOptions(config.run.threads, kv_dtype, cold, spin, _pages(config))

    def start(sizes: PoolSizes) -> Compute:
        return NativeCompute(native, shape, weights, collectives, sizes=sizes, options=options)

    heads = native_cache.heads_of(shape, collectives.rank, collectives.world)
    cold_layers = cold.layers if cold else (False,) * shape.num_layers
    windowed = [is_cold for is_cold, window in zip(cold_layers, shape.windows, strict=True) if window]
    weights_name = "" if precision == "fp32" else f" {precision}"
    kv_name = str(kv_dtype).removeprefix("torch.")
    kv_format = "fp16" if kv_dtype == torch.float16 else "fp32"
    return ComputeBackend(
        f"native {native.target}{weights_name}, {kv_name} KV{', fp8 behind' if cold else ''}",
        native_cache.block_bytes(shape.num_layers, heads, kv_dtype, sum(cold_layers)),
        start,
        f"{kv_format}+{cold.format}" if cold else kv_format,
        hot_bytes=native_cache.hot_bytes(config.run.max_running, heads, kv_dtype, cold) if cold else 0,
        sliding_bytes=native_cache.block_bytes(len(windowed), heads, kv_dtype, sum(windowed)),
        precision=precision,
    )


def find_kernels(config: RankConfig, shape: ModelConfig) -> tuple[KernelLibrary | None, str]:
    """The kernels; or None for the plain path, and the reason.

    Raises:
        ModelError: A setting needs the kernels, or excludes them, against another one or this machine.
    """
    special = [f"precision={config.run.precision}"] * (config.run.precision not in {"auto", "fp32"})
    special += [f"kv_dtype={config.run.kv_dtype}"] * (config.run.kv_dtype == "fp16")
    special += [f"kv_cold={config.run.kv_cold}"] * (config.run.kv_cold != "none")
    if config.run.kernels == "plain":
        if special:
            raise ModelError(f"{special[0]} needs the native kernels; set kernels=auto, not plain")
        return None, "RYZ_KERNELS=plain"
    try:
        if reason := unsupported(shape):
            raise NoKernels(reason)
        return _chosen_kernels(config), ""
    except NoKernels as error:
        wanted = [f"kernels={config.run.kernels}"] * (config.run.kernels != "auto") + special
        if wanted:
            raise ModelError(f"{wanted[0]} cannot be had here: {error}") from error
        if config.rank == 0:
            log.warning("computing without compiled kernels, which is several times slower", why=str(error))
        return None, str(error)


def _chosen_kernels(config: RankConfig) -> KernelLibrary:
    """The kernels of the instruction set that is asked for, else the best of this processor.

    Raises:
        NoKernels: There are none.
    """
    name, here = config.run.kernels, targets()
    if name not in TARGETS:
        return kernels()
    if name not in here:
        raise NoKernels(f"this processor has no {name}; set kernels=auto")
    return kernels(name)
