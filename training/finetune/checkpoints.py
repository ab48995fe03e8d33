"""Checkpoints: all that a training needs to go on as if it had not been interrupted.

A checkpoint is a directory `checkpoints/step-N` with tensors as safetensors and the rest as JSON. It gets its
name when it is complete and on the disk; then older ones are removed.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.finetune.errors import FinetuneError

_FOLDER, _TENSORS, _FACTS = "checkpoints", "state.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{6,})")
_OPTIONS = {"learning_rate": "learning-rate", "held_out": "held-out", "base_bits": "base-bits"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after a step.

    Attributes:
        identity: What decides the result: the plan, data and base; see `require_same`.
        facts: Plain values of the trainer.
        tensors: By names with a prefix for each kind.
    """

    step: int
    identity: dict[str, Any]
    facts: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(directory: Path, state: Checkpoint) -> None:
    """Write a checkpoint, and remove older ones.

    Raises:
        FinetuneError: The disk is full or not writable.
    """
    folder = directory / _FOLDER
    name = f"step-{state.step:06d}"
    draft = folder / f".{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_file(state.tensors, draft / _TENSORS)
        facts = {"step": state.step, "identity": state.identity, "facts": state.facts}
        (draft / _FACTS).write_text(json.dumps(facts, indent=1))
        for path in (draft / _TENSORS, draft / _FACTS, draft):
            _sync(path)
        shutil.rmtree(folder / name, ignore_errors=True)
        draft.rename(folder / name)
        _sync(folder)
        for other in folder.iterdir():
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FinetuneError(f"The checkpoint {folder / name} cannot be written: {reason}") from error


def find_checkpoint(directory: Path) -> Path | None:
    """Return the newest complete checkpoint."""
    folder = directory / _FOLDER
    if not folder.is_dir():
        return None
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return max(found)[1] if found else None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FinetuneError: It is damaged.
    """
    try:
        facts = json.loads((path / _FACTS).read_text())
        return Checkpoint(facts["step"], facts["identity"], facts["facts"], load_file(path / _TENSORS))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise FinetuneError(
            f"The checkpoint {path} is damaged ({error}); remove its directory and start anew"
        ) from error


def remove_checkpoints(directory: Path) -> None:
    """Remove all checkpoints of a training that has ended."""
    shutil.rmtree(directory / _FOLDER, ignore_errors=True)


def require_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to go on with other data, another base or other options.

    Raises:
        FinetuneError: Something differs; the text names it.
    """
    for name in sorted(found.keys() | wanted.keys()):
        before, now = found.get(name), wanted.get(name)
        if before == now:
            continue
        if name in ("data_sha256", "base_sha256"):
            what = "`--data`" if name.startswith("data") else "the base"
            raise FinetuneError(f"{what} is not what the interrupted training had; resume with the same")
        if name == "bf16":
            raise FinetuneError(
                "This processor computes in another precision than that of the interrupted training"
            )
        option = _OPTIONS.get(name, name.replace("_", "-"))
        raise FinetuneError(
            f"`--{option}` was {before} in the interrupted training and is {now}; resume with the same"
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
