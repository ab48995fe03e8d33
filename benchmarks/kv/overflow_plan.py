"""The plan of `ryz bench overflow`: turns of sessions on either of two groups, and writing behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Word
from services.worker.rank_protocol.run_config import Quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowPlan:
    """The options of `ryz bench overflow`."""

    model: Annotated[
        Path | None, Option(help="Model directory; left out: one of 110M random weights is made.")
    ] = None
    quantize: Annotated[Quantize, Option(help="none or int8."), Word(get_args(Quantize))] = "int8"
    tensor_parallel: Annotated[int, Option(min=1, max=64, help="Ranks of each group.")] = 2
    session_tokens: Annotated[int, Option(min=64, help="Tokens of the timed sessions.")] = 2000
    repeats: Annotated[int, Option(min=1, max=1000, help="Timed turns of each kind.")] = 12
    turns: Annotated[int, Option(min=0, max=10_000, help="Turns of mixed lengths, for the rule.")] = 200
    write_batch: Annotated[
        int, Option(min=0, max=256, help="Sequences that decode with and without writing; 0: none.")
    ] = 8
