"""Reads the JSON files of a model within limits of size, checked before a file is read.

A model directory is untrusted: a damaged or malicious one has to be refused quickly.
"""

import json
import stat
from pathlib import Path
from typing import Any

MAX_CONFIG_BYTES = 16 * 2**20  # several hundred times the largest known
MAX_INDEX_BYTES = 64 * 2**20
MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_TEMPLATE_BYTES = 2**20
SHOWN = 80  # characters of a value, in a refusal


class BadFile(ValueError):
    """A file that is refused; the text says why, and is meant to follow the file's name."""


def require_size(path: Path, most: int) -> None:
    """Check that a path is a regular file of at most `most` bytes.

    Raises:
        BadFile: It is not.
        OSError: There is no such file.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise BadFile("is no regular file")
    if found.st_size > most:
        raise BadFile(f"has {found.st_size} bytes, {most} are the limit")


def read_object(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises:
        FileNotFoundError: There is no such file.
        BadFile: It is too large, cannot be read, is no JSON, or is nested too deeply.
    """
    try:
        require_size(path, most)
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, BadFile):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadFile(f"must hold a JSON object, it holds a {type(value).__name__}")
    return value


def shown(value: object) -> str:
    """Describe a value of any size for an error message."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}" if len(value) > 8 else _short(value)
    return _short(value)


def _short(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value if not isinstance(value, str) else value[: SHOWN + 1])
    except (RecursionError, ValueError):  # nested deeply, or a number of thousands of digits in it
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
