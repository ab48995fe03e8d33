"""Finds the directory of the model that a stack serves, and refuses one that cannot be served."""

import re
from pathlib import Path
from typing import NoReturn

from cli.console import fail

MODEL_FILES = ("config.json", "tokenizer.json")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def find_model(model: Path | None, engine: str, tensor_parallel: int) -> Path | None:
    """Return the directory of the model: the given one, or the demo that ships with the repository.

    The null engine needs none.

    Args:
        model: The directory that was asked for.
        engine: `torch` or `null`.
        tensor_parallel: Ranks that share the model.

    Raises:
        CommandError: The directory is missing, holds no model, or one that cannot be served or split like
            this. A rank would say so only seconds later.
    """
    if model is None and engine == "null":
        return None
    directory = model or demo_model()
    if not directory.is_dir():
        _no_directory(model)
    if engine != "null" and (directory / "config.json").exists():
        _check_config(directory, tensor_parallel)
    missing = [name for name in MODEL_FILES if not (directory / name).exists()]
    if missing:
        fail(
            f"{directory} holds no model in Hugging Face format: {' and '.join(missing)} missing. "
            "Give another directory with `--model PATH`."
        )
    return directory.resolve()


def _no_directory(model: Path | None) -> NoReturn:
    if model is None:
        fail(
            f"There is no model directory {demo_model()}. Give one with `--model PATH` (a Hugging Face "
            f"directory), or make the demo with `ryz train-demo --output {demo_model()}`."
        )
    if HUB_ID.fullmatch(str(model)):
        fail(
            f"There is no directory {model}. If that is a name on the Hugging Face hub: models are not "
            "downloaded, give a local directory with `--model PATH`."
        )
    fail(f"There is no directory {model}. Check the path given with `--model`.")


def _check_config(directory: Path, tensor_parallel: int) -> None:
    from services.worker.engine.checkpoint.json_fields import ModelError  # noqa: PLC0415 (quick `--help`)
    from services.worker.engine.checkpoint.model_families import read_config  # noqa: PLC0415 (quick `--help`)

    try:
        config = read_config(directory)
    except ModelError as error:
        fail(f"This model cannot be served: {error}.")
    try:
        config.check_split(tensor_parallel)
    except ModelError as error:
        fail(f"`--tensor-parallel {tensor_parallel}` does not suit {directory}: {error}.")


def demo_model() -> Path:
    """Return the directory of the demo model in this checkout."""
    return Path(__file__).resolve().parents[2] / "models" / "demo"
