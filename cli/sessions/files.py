"""Session files on this machine: read whole, written whole or not at all. Their content is the gateway's."""

import os
import sys
import tempfile
from pathlib import Path

from cli.console import fail


def read_file(name: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`; fail with a sentence."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        fail(f"The file {name} cannot be read: {error.strerror or error}.")


def write_new(path: Path, content: bytes, *, force: bool) -> Path:
    """Write a file and return its path; fail when there is one already, unless `force`."""
    if path.exists() and not force:
        fail(f"There is a file {path} already: choose another with `--output`, or say `--force`.", 4)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
    except OSError as error:
        fail(f"The file {path} cannot be written: {error.strerror or error}.")
    try:
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        fail(f"The file {path} cannot be written: {error.strerror or error}.")
    return path
