"""Names the files of a model by samples of their bytes, for an engine that does not say what it has loaded.

It tells different checkpoints apart, and does not protect against a forged one.
"""

from hashlib import blake2b
from pathlib import Path

_WEIGHTS = {".safetensors", ".gguf", ".bin", ".pt"}
_CONFIGS = {"config.json", "quantize_config.json", "hf_quant_config.json"}
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def weights_identity(model: Path, computed_as: str) -> str:
    """Return 32 hexadecimal digits for a model.

    Args:
        model: A directory or a file.
        computed_as: Types of weights and arithmetic.

    Raises:
        OSError: A file cannot be read.
    """
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    digest = blake2b(computed_as.encode() + b"\0", digest_size=16)
    for path in files:
        if path.suffix in _WEIGHTS or path.name in _CONFIGS:
            _add_samples(digest, path)
    return digest.hexdigest()


def _add_samples(digest: "blake2b", path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(f"{path.name} {size}\0".encode())
        span = max(0, size - _SAMPLE_BYTES)
        for index in range(_SAMPLES):
            file.seek(span * index // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
