"""The plan of `ryz bench routing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Numbers, Words
from services.router.domain.policies import PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPlan:
    """The options of `ryz bench routing`."""

    policies: Annotated[
        Sequence[PolicyName], Option(help="Policies to compare, with commas between them."),
        Words(get_args(PolicyName)),
    ] = ("hybrid", "sticky", "round_robin", "least_loaded")  # fmt: skip
    sessions: Annotated[int, Option(min=1, max=100_000, help="Sessions that ask.")] = 64
    zipf: Annotated[float, Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1
    groups: Annotated[int, Option(min=1, max=64, help="Worker groups, modelled.")] = 4
    load: Annotated[float, Option(min=0.01, max=2.0, help="Share of all groups' time that is asked for.")] = (
        0.7
    )
    duration: Annotated[float, Option(min=10.0, max=3600.0, help="Seconds of virtual time.")] = 300.0
    seed: Annotated[int, Option(min=0, help="Of the requests; the same ones for every policy.")] = 1
    store: Annotated[bool, Option("--store/--no-store", help="Groups have the KV store.")] = True
    sizes: Annotated[
        Sequence[int], Option(help="Fleets to time decisions in, as numbers of groups."), Numbers(1000)
    ] = (4, 64)
