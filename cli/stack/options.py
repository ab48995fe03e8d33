"""What the person asked of `ryz up`, checked and with nothing left to guess."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cli.console import fail

MODEL_FILES = ("config.json", "tokenizer.json")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of a start; paths are absolute. Port 0 stands for a free one.

    stack: what the names of groups begin with; empty: nothing.
    """

    state_dir: Path
    model: Path | None
    model_name: str
    engine: str
    groups: int
    tensor_parallel: int
    quantize: str
    kernels: str
    host: str
    port: int
    policy: str
    nats_url: str
    redis_url: str
    nats_port: int
    redis_port: int
    redis_dir: Path | None
    log_level: str
    start_timeout_s: float
    redis_memory_share: float = 0.4
    open_to_network: bool = False
    stack: str = ""


def find_model(model: Path | None, engine: str, tensor_parallel: int) -> Path | None:
    """The directory of the model: the given one, or the demo that ships with the repository.

    The null engine needs none. Fails with the remedy when the directory is missing, holds no model, or holds
    one that cannot be served or split like this: seconds before the first rank would say so.
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
    from services.worker.engine.checkpoint.model_config import ModelError, read_config  # noqa: PLC0415 (quick `--help`)

    try:
        config = read_config(directory)
    except ModelError as error:
        fail(f"This model cannot be served: {error}.")
    try:
        config.check_split(tensor_parallel)
    except ModelError as error:
        fail(f"`--tensor-parallel {tensor_parallel}` does not suit {directory}: {error}.")


def demo_model() -> Path:
    """Where the demo model is in a checkout, wherever the command is run."""
    return Path(__file__).resolve().parents[2] / "models" / "demo"


def threads_per_rank(groups: int, tensor_parallel: int) -> int:
    """The cores of this machine, shared evenly by all ranks; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (groups * tensor_parallel))
