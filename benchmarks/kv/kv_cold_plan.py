"""The shape of the attention op that `ryz bench kv` measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from benchmarks.lib.options import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class KVColdPlan:
    """The options of `ryz bench kv`."""

    heads: Annotated[int, Option(min=1, max=256, help="Query heads.")] = 12
    kv_heads: Annotated[int, Option(min=1, max=256, help="Heads of keys and values.")] = 12
    head_dim: Annotated[int, Option(min=2, max=256, help="Numbers of a head.")] = 64
    batch: Annotated[int, Option(min=1, max=256, help="Sequences in a step.")] = 8
    contexts: Annotated[
        Sequence[int], Option(help="Tokens of each sequence, one after the other."), Numbers(131_072)
    ] = (512, 2048, 4096)
    threads: Annotated[int, Option(min=1, max=256, help="Threads that share an op.")] = 1
    repeats: Annotated[int, Option(min=1, max=10_000, help="Ops measured; the median counts.")] = 50
