"""Measures this machine, and the files of a model."""

import os
from dataclasses import replace
from pathlib import Path

from cli.models.store import packed_dir
from cli.stack.memory_needs import MachineFacts
from cli.stack.options import UpOptions
from services.worker.engine.checkpoint.codes.sizes import mean_bytes
from services.worker.engine.checkpoint.model_size import FP16_BYTES, FP32_BYTES, ModelSize, model_size
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native import build
from services.worker.engine.native.mapped.packed_room import packed_room
from services.worker.engine.precision import stored_precision
from services.worker.rank_protocol.run_config import EngineRunConfig
from shared.host.cores_and_memory import available_bytes, total_bytes, usable_cores


def machine_facts(options: UpOptions, *, will_compile: bool = False) -> MachineFacts:
    """Look at this machine.

    Args:
        will_compile: Whether kernels that are missing will be compiled if that can be done, as `ryz up` does
            before it chooses anything.
    """
    stores = 0 if options.redis_url else int(total_bytes() * options.redis_memory_share)
    kernels = options.kernels != "plain" and (_are_compiled() or (will_compile and _can_compile()))
    free, limit = available_bytes(), int(options.memory_gib * 2**30)
    limit = limit if 0 < limit < free else 0
    return MachineFacts(usable_cores(), limit or free, kernels, stores, _packed_bytes(options), limit)


def measure_model(path: Path, *, kernels: bool = True) -> ModelSize:
    """Count a model's parameters and bytes, from its config and the sizes of its files.

    Without kernels all weights become fp32.

    Raises:
        ModelError: It cannot be served.
    """
    config = read_config(path)
    size, kernels = model_size(config), kernels and not config.latent
    tensors = stored_tensors(path).values()
    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    each = sum(file.stat().st_size for file in files) / max(1, size.parameters)
    # weights of fewer than 16 bits are unpacked to floats when they are read
    stored_bytes = FP16_BYTES if kernels and 1.5 < each < 3 else FP32_BYTES
    return replace(
        size, stored_bytes=stored_bytes, stored=stored_precision(tensors), code_bytes=mean_bytes(tensors)
    )


def _are_compiled() -> bool:
    return any(build.find(target) for target in build.targets())


def _can_compile() -> bool:
    try:
        build.compiler_command()
    except build.NoKernels:
        return False
    return bool(build.targets())


def _packed_bytes(options: UpOptions) -> int:
    """Room for packed weights where the workers will look for them."""
    directory = os.environ.get("RYZ_PACKED_DIR", str(packed_dir()))
    if not directory or options.engine != "torch":
        return 0
    try:
        gib = float(os.environ.get("RYZ_PACKED_DIR_GIB") or EngineRunConfig.packed_dir_gib)
        return packed_room(Path(directory), int(gib * 2**30))
    except (ValueError, OverflowError, OSError):
        return 0  # the workers refuse the setting and name it, or cannot use the directory
