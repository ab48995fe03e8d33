"""What the person asked of `ryz up`, checked and with nothing left to guess."""

import os
from dataclasses import dataclass
from pathlib import Path

from cli.console import fail

MODEL_FILES = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of a start; paths are absolute. Port 0 stands for a free one."""

    state_dir: Path
    model: Path | None
    model_name: str
    engine: str
    groups: int
    tensor_parallel: int
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


def find_model(model: Path | None, engine: str) -> Path | None:
    """The directory of the model: the given one, or the demo that ships with the repository.

    The null engine needs none. Fails with the remedy when the directory is missing or holds no model.
    """
    if model is None and engine == "null":
        return None
    directory = model or demo_model()
    if not directory.is_dir():
        hint = "Give one with `--model PATH`" if model is None else "Check the path given with `--model`"
        fail(
            f"There is no model directory {directory}. {hint} (a Hugging Face directory), or make the "
            f"demo with `ryz train-demo --output {demo_model()}`."
        )
    missing = [name for name in MODEL_FILES if not (directory / name).exists()]
    if missing:
        fail(
            f"{directory} holds no model in Hugging Face format: {' and '.join(missing)} missing. "
            "Give another directory with `--model PATH`."
        )
    return directory.resolve()


def demo_model() -> Path:
    """Where the demo model is in a checkout, wherever the command is run."""
    return Path(__file__).resolve().parents[2] / "models" / "demo"


def threads_per_rank(groups: int, tensor_parallel: int) -> int:
    """The cores of this machine, shared evenly by all ranks; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (groups * tensor_parallel))
