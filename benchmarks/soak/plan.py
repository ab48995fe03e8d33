"""What `ryz bench soak` does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from benchmarks.engine_plans import TensorParallel
from benchmarks.stack_plans import ModelOrDemo, Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """`ryz bench soak`: how long, under which load, with how many faults."""

    hours: Annotated[float, Option(min=0.01, max=720.0, help="How long.")] = 2.0
    every: Annotated[
        float,
        Option(min=5.0, max=3600.0, help="Seconds between two faults, in the mean; a third more or less."),
    ] = 60.0
    clients: Annotated[int, Option(min=1, max=256, help="Clients that ask one after another.")] = 6
    tokens: Annotated[int, Option(min=2, max=4096, help="Tokens of an answer at most.")] = 48
    output: Annotated[Path, Option("--output", "-o", help="The directory of report and plots.")] = Path(
        "soak"
    )
    model: ModelOrDemo = None
    tensor_parallel: TensorParallel = 2
    seed: Seed = 0
