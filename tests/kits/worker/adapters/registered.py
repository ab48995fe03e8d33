"""Adapters as routers name them in `Work`, over files that are there."""

from pathlib import Path

from services.worker.null.adapter_files import inspect_null_adapter
from shared.messages import Adapter


def registered(directory: Path, name: str, *, base: str = "demo", num_bytes: int = 0) -> Adapter:
    """An adapter of the null engine; `num_bytes` in place of the size of its file."""
    source = directory / name
    source.mkdir(exist_ok=True)
    (source / "adapter_model.safetensors").write_bytes(name.encode() * 100)
    found = inspect_null_adapter(str(source))
    return Adapter(
        name=name,
        base=base,
        source=str(source),
        fingerprint=found.fingerprint,
        rank=found.rank,
        num_bytes=num_bytes or found.num_bytes,
    )
