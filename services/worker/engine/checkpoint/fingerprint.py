"""A hash of a model's weights and shape, whatever files and ranks they are split over.

Groups with the same fingerprint share KV blocks. It covers the config as the engine reads it, and each
tensor's name, type, shape and samples of its bytes (some KiB per tensor). It tells different checkpoints
apart, and does not protect against a forged one.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import IO

from services.worker.engine import int8
from services.worker.engine.checkpoint.stored_tensor import SAMPLE_BYTES, SAMPLES, StoredTensor
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.model import ModelConfig


def fingerprint(model: Path, config: ModelConfig, precision: str = "fp32") -> str:
    """32 hexadecimal digits for a model.

    Args:
        model: Its directory or file.
        precision: That is computed with; other values, and other 8-bit formats, give other fingerprints.

    Raises:
        ModelError: A file is damaged.
    """
    digest = blake2b(digest_size=16)
    digest.update((int8.FORMAT if precision == "int8" else precision).encode() + b"\0")
    digest.update(json.dumps(asdict(config), sort_keys=True).encode())
    with ExitStack() as stack:
        files: dict[Path, IO[bytes]] = {}
        for name, stored in sorted(stored_tensors(model).items()):
            if stored.path not in files:
                files[stored.path] = stack.enter_context(stored.path.open("rb"))
            digest.update(name.encode() + b"\0" + _digest(files[stored.path], stored))
            if stored.scales is not None:
                digest.update(stored.scales.samples())
            if stored.packed is not None:
                parts = (stored.packed.scales, stored.packed.zeros, stored.packed.order)
                digest.update(f"{stored.packed.form} {stored.packed.zeros_above}".encode())
                digest.update(b"".join(part.samples() for part in parts if part is not None))
    return digest.hexdigest()


def _digest(file: IO[bytes], stored: StoredTensor) -> bytes:
    digest = blake2b(json.dumps([stored.kind, stored.shape]).encode(), digest_size=16)
    length = stored.end - stored.begin
    span = max(0, length - SAMPLE_BYTES)
    for index in range(SAMPLES):
        file.seek(stored.begin + span * index // (SAMPLES - 1))
        digest.update(file.read(min(SAMPLE_BYTES, length)))
    return digest.digest()
