"""The plan of `ryz bench failover`: faults, and the streams that are read meanwhile."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """The options of `ryz bench failover`."""

    kills: Annotated[int, Option(min=0, max=100_000, help="Ranks and leaders to kill.")] = 100
    streams: Annotated[int, Option(min=1, max=4096, help="Streams that are read at a time.")] = 32
    tokens: Annotated[int, Option(min=2, help="Tokens of each stream.")] = 128
    freeze: Annotated[bool, Option("--freeze", help="Freeze leaders for a while instead of killing.")] = False
    calm: Annotated[float, Option(min=0.0, help="Seconds without faults, for false alarms.")] = 0.0
    model: Annotated[Path | None, Option(help="Model directory; left out: the demo model.")] = None
    tensor_parallel: Annotated[int, Option(min=1, max=64, help="Ranks of each group.")] = 2
    seed: Annotated[int, Option(help="Of the choice of victims.")] = 0
