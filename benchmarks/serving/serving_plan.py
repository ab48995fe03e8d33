"""The plan of `ryz bench serving`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from benchmarks.lib.options import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """The options of `ryz bench serving`."""

    concurrency: Annotated[
        Sequence[int], Option(help="Requests in flight, one level after the other."), Numbers(4096)
    ] = (1, 8, 32, 128)
    duration: Annotated[float, Option(min=0.2, help="Measured seconds at each level.")] = 5.0
    warmup: Annotated[float, Option(min=0.0, help="Seconds before that at each level.")] = 1.0
    tokens: Annotated[int, Option(min=1, max=4096, help="Tokens that each answer has.")] = 16
    stream: Annotated[bool, Option("--stream/--no-stream", help="Ask for streamed answers.")] = False
    url: Annotated[str, Option(help="Measure the stack at this address instead of an own one.")] = ""
    model: Annotated[str, Option(help="The model to ask, with --url.")] = "demo"
    groups: Annotated[int, Option(min=1, max=16, help="Worker groups of the own stack.")] = 2
