"""The plan of `ryz bench sessions`: the traffic of sessions, and the stacks that take it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Words
from services.router.domain.policies import PolicyName

PROMPT_TOKENS, ANSWER_TOKENS = 60, 40  # means
MOST_TOKENS = 1500  # a session of so many tokens begins a new conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsPlan:
    """The options of `ryz bench sessions`."""

    policies: Annotated[
        Sequence[PolicyName], Option(help="Policies to compare, with commas between them."),
        Words(get_args(PolicyName)),
    ] = ("hybrid", "sticky", "round_robin")  # fmt: skip
    sessions: Annotated[int, Option(min=1, max=100_000, help="Sessions that ask.")] = 64
    zipf: Annotated[float, Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1
    groups: Annotated[int, Option(min=1, max=16, help="Worker groups of one rank each.")] = 4
    clients: Annotated[int, Option(min=1, max=1024, help="Turns that are under way at once.")] = 16
    model: Annotated[
        Path | None, Option(help="Model directory with a chat template; left out: the demo model.")
    ] = None
    duration: Annotated[float, Option(min=1.0, help="Measured seconds of each policy.")] = 60.0
    warmup: Annotated[float, Option(min=0.0, help="Seconds before that.")] = 20.0
    seed: Annotated[int, Option(min=0, help="Of the turns; the same ones for every policy.")] = 1
