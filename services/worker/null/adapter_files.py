"""Inspects adapters for the null engine: any file or directory is one, named by its content."""

import hashlib
from pathlib import Path

from services.worker.adapters.description import AdapterDescription, AdapterError

_PIECE = 2**20


def inspect_null_adapter(source: str) -> AdapterDescription:
    """Returns the digest and the size of what is there.

    Raises:
        AdapterError: There is nothing.
    """
    path = Path(source)
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    if not files:
        raise AdapterError(f"there is no file or directory {source}, or nothing is in it")
    digest, num_bytes = hashlib.blake2b(digest_size=16), 0
    for file in files:
        digest.update(f"{file.relative_to(path.parent)}\0".encode())
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
                num_bytes += len(piece)
    return AdapterDescription(digest.hexdigest(), rank=1, num_bytes=num_bytes, targets=())
