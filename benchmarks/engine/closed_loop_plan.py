"""The options of `ryz bench closed-loop`; notes of fields are read as in `benchmarks/engine_plans.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from benchmarks.engine_plans import Model, OnePrecision, TensorParallel, Threads
from benchmarks.lib.options import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopPlan:
    """`ryz bench closed-loop`: whole requests, some at once, against prompts and tokens alone."""

    model: Model
    precision: OnePrecision = "int8"
    tensor_parallel: TensorParallel = 1
    threads: Threads = 0
    requests: Annotated[int, Option(min=1, max=10_000, help="Requests of a round.")] = 48
    at_once: Annotated[int, Option(min=1, max=256, help="Requests that run at once.")] = 16
    prompt: Annotated[int, Option(min=2, help="Tokens of each prompt; they are random.")] = 256
    tokens: Annotated[int, Option(min=2, max=10_000, help="Tokens of each answer.")] = 128
    targets: Annotated[
        Sequence[int], Option(help="RYZ_ITL_TARGET_MS, one after the other; 0: none."), Numbers(60_000, 0)
    ] = (0, 100)
    rounds: Annotated[int, Option(min=1, max=100, help="Rounds of each target, in turns.")] = 3
