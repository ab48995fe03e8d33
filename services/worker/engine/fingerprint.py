"""Names a model's weights and shape by a hash that does not depend on how it is split or filed.

It decides which groups may share KV blocks. It covers the config as the engine understands it, and each
tensor's name, type, shape and samples of its bytes: cheap (some KiB per tensor), so it tells checkpoints
apart by accident of content, and is no defence against someone who forges one.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from services.worker.engine.config import ModelConfig
from services.worker.engine.weights import weight_files

SAMPLES = 8  # spread evenly over a tensor, first and last bytes included
SAMPLE_BYTES = 256


def fingerprint(directory: Path, config: ModelConfig) -> str:
    """32 hexadecimal digits for the model in that directory (whose files have been opened before)."""
    digest = blake2b(digest_size=16)
    digest.update(json.dumps(asdict(config), sort_keys=True).encode())
    parts: dict[str, bytes] = {}
    for path in weight_files(directory):
        with path.open("rb") as file:
            parts.update(_tensor_digests(file))
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + parts[name])
    return digest.hexdigest()


def _tensor_digests(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Each tensor of a safetensors file: header length (8 bytes), JSON header, data."""
    (length,) = struct.unpack("<Q", file.read(8))
    header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        digest = blake2b(json.dumps([entry["dtype"], entry["shape"]]).encode(), digest_size=16)
        span = max(0, end - begin - SAMPLE_BYTES)
        for index in range(SAMPLES):
            file.seek(begin + span * index // (SAMPLES - 1))
            digest.update(file.read(min(SAMPLE_BYTES, end - begin)))
        yield name, digest.digest()
