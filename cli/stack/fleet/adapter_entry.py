"""What a models file says of an adapter of a model, and the check that its files are there."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
CONFIG = "adapter_config.json"


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:64]!r} is no name: it needs 1 to 64 letters, digits, `_`, `.` and `-`")
    return name


class AdapterEntry(BaseModel):
    """An adapter (LoRA) that the fleet knows from the start."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    name: Annotated[str, AfterValidator(_check_name)]
    """Clients ask for the model's name, a colon and this name."""
    source: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """A PEFT directory or a GGUF file; a relative path begins at the models file."""


def missing_files(path: Path) -> str:
    """Return what is wrong with the place of an adapter's files, as a sentence; empty: nothing is."""
    if path.is_dir():
        if (path / CONFIG).is_file():
            return ""
        return f"{path} has no {CONFIG}: name a PEFT directory or a GGUF file"
    if not path.exists():
        return f"there is no {path}: name a PEFT directory or a GGUF file"
    return "" if path.suffix == ".gguf" else f"{path} is no GGUF file: name one, or a PEFT directory"
