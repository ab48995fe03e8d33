"""Reads the JSON files of a model within bounds: what a file costs is known before a byte of it is read.

A model directory comes from elsewhere, and one that is damaged or made to harm is to be refused in a moment.
"""

import json
import stat
from pathlib import Path
from typing import Any

MAX_CONFIG_BYTES = 16 * 2**20  # several hundred times the largest there is
MAX_INDEX_BYTES = 64 * 2**20
MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_TEMPLATE_BYTES = 2**20
SHOWN = 80  # characters of a value, in a refusal


class BadFile(ValueError):
    """A file that is not read; the text says why, and follows the file's name."""


def require_size(path: Path, most: int) -> None:
    """Raises `BadFile` when that is no regular file of at most so many bytes; `OSError`: there is none."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise BadFile("is no regular file")
    if found.st_size > most:
        raise BadFile(f"has {found.st_size} bytes, {most} are the limit")


def read_object(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileNotFoundError: there is none.
        BadFile: it is too large, cannot be read, is no JSON, or is nested too deeply.
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
    """A value from a file as a refusal shows it, whatever its size."""
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
