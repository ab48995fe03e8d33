"""The options of benchmarks of whole stacks: faults, batches, sessions, routing, KV moved between groups.

Options are declared as in `engine_plans.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from typer import Option

from benchmarks.engine_plans import OnePrecision, TensorParallel
from benchmarks.lib.options import Numbers, Words
from services.router.domain.policies import PolicyName

ModelOrDemo = Annotated[Path | None, Option(help="Path or name of the model; left out: the demo.")]
Seed = Annotated[int, Option(min=0, help="Of all that is drawn at random.")]
Policies = Annotated[
    Sequence[PolicyName], Option(help="Policies to compare, with commas between them."),
    Words(get_args(PolicyName)),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowPlan:
    """`ryz bench overflow`: turns of sessions on either of two groups, and writing behind."""

    model: Annotated[
        Path | None, Option(help="Path or name of the model; left out: one of 110M random weights is made.")
    ] = None
    precision: OnePrecision = "int8"
    tensor_parallel: TensorParallel = 2
    session_tokens: Annotated[int, Option(min=64, help="Tokens of the timed sessions.")] = 2000
    repeats: Annotated[int, Option(min=1, max=1000, help="Timed turns of each kind.")] = 12
    turns: Annotated[int, Option(min=0, max=10_000, help="Turns of mixed lengths, for the rule.")] = 200
    write_batch: Annotated[
        int, Option(min=0, max=256, help="Sequences that decode with and without writing; 0: none.")
    ] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """`ryz bench failover`: faults, and the streams that are read meanwhile."""

    kills: Annotated[int, Option(min=0, max=100_000, help="Ranks and leaders to kill.")] = 100
    streams: Annotated[int, Option(min=1, max=4096, help="Streams that are read at a time.")] = 32
    tokens: Annotated[int, Option(min=2, help="Tokens of each stream.")] = 128
    freeze: Annotated[
        bool, Option("--freeze", help="Freeze leaders and ranks in turn instead of killing them.")
    ] = False
    structured: Annotated[
        bool, Option("--structured", help="Ask for answers under schemas and for tool calls.")
    ] = False
    calm: Annotated[float, Option(min=0.0, help="Seconds without faults, for false alarms.")] = 0.0
    adapters: Annotated[
        int,
        Option(min=0, max=64, help="Adapters of random numbers; streams take turns with them and the base."),
    ] = 0
    model: ModelOrDemo = None
    tensor_parallel: TensorParallel = 2
    seed: Seed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """`ryz bench batch`: interactive requests, the batch beside them, and the stack that answers them."""

    rate: Annotated[float, Option(min=0.1, max=1000.0, help="Interactive requests a second.")] = 4.0
    words: Annotated[int, Option(min=1, max=4096, help="Words of their prompts.")] = 64
    tokens: Annotated[int, Option(min=2, max=4096, help="Tokens of their answers.")] = 32
    batch_tokens: Annotated[int, Option(min=1, max=4096, help="Tokens of the batch's answers.")] = 64
    rounds: Annotated[int, Option(min=1, max=100, help="Pairs of rounds, alone and with the batch.")] = 4
    duration: Annotated[float, Option(min=1.0, help="Seconds of each round.")] = 20.0
    engine: Annotated[Literal["torch", "null"], Option(help="Of the own stack.")] = "torch"
    groups: Annotated[int, Option(min=1, max=16, help="Worker groups of the own stack.")] = 1
    url: Annotated[str, Option(help="Measure the stack at this address instead of an own one.")] = ""
    model: Annotated[str, Option(help="The model; with --url its name.  [default: demo]")] = ""
    seed: Seed = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WakingPlan:
    """`ryz bench waking`: a model that is put to sleep and asked again and again."""

    rounds: Annotated[int, Option(min=1, max=10_000, help="How often it is woken.")] = 50
    tokens: Annotated[int, Option(min=1, max=4096, help="Tokens of each answer.")] = 4
    model: Annotated[str, Option(help="A name of the catalogue, or a path.")] = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestPlan:
    """`ryz bench guest`: a server of others that runs already, alone and behind a group."""

    url: Annotated[str, Option(help="Address of the server, such as http://127.0.0.1:8100.")]
    tokenizer: Annotated[str, Option(help="The model's tokenizer, as for `ryz worker`.")]
    remote_model: Annotated[str, Option(help="The model's name there.")] = "demo"
    concurrency: Annotated[
        Sequence[int], Option(help="Answers at once, one number after the other."), Numbers(512)
    ] = (1, 8, 32)
    prompt_tokens: Annotated[int, Option(min=1, help="Of each prompt, all of which differ.")] = 64
    tokens: Annotated[int, Option(min=2, help="Of each answer.")] = 64
    rounds: Annotated[int, Option(min=1, max=1000, help="Turns of both, for each number.")] = 8
    seed: Seed = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPoolPlan:
    """`ryz bench adapter-pool`: adapters, and a group that has memory for some of them."""

    adapters: Annotated[
        Sequence[int],
        Option(help="How many adapters are asked for, one number after the other."),
        Numbers(1024),
    ] = (8, 16)
    slots: Annotated[int, Option(min=1, max=1024, help="How many of them the group has memory for.")] = 8
    rank: Annotated[int, Option(min=1, max=512, help="Of each adapter.")] = 16
    concurrency: Annotated[int, Option(min=1, max=256, help="Requests at once.")] = 8
    requests: Annotated[int, Option(min=1, max=100_000, help="Of each round.")] = 64
    rounds: Annotated[int, Option(min=1, max=1000, help="Of each number of adapters.")] = 5
    tokens: Annotated[int, Option(min=1, max=4096, help="Of each answer.")] = 16
    loads: Annotated[
        int, Option(min=0, max=10_000, help="Loads of adapters that are not in memory, one after the other.")
    ] = 100
    model: ModelOrDemo = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsPlan:
    """`ryz bench tenants`: a tenant that floods a group, and two that behave."""

    streams: Annotated[int, Option(min=4, max=512, help="Requests that the flood has under way.")] = 64
    long_words: Annotated[int, Option(min=2, max=4096, help="Words of its prompts.")] = 192
    clients: Annotated[int, Option(min=1, max=64, help="Clients of each tenant that behaves.")] = 2
    words: Annotated[int, Option(min=2, max=4096, help="Words of their prompts.")] = 64
    pause: Annotated[float, Option(min=0.0, help="Seconds between an answer and the next request.")] = 0.5
    tokens: Annotated[int, Option(min=1, max=4096, help="Of each answer.")] = 16
    rounds: Annotated[int, Option(min=1, max=1000, help="Of all phases.")] = 3
    duration: Annotated[float, Option(min=1.0, help="Seconds of each phase.")] = 20.0
    model: ModelOrDemo = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsPlan:
    """`ryz bench sessions`: the traffic of sessions, and the stacks that take it."""

    policies: Policies = ("hybrid", "sticky", "round_robin")
    sessions: Annotated[int, Option(min=1, max=100_000, help="Sessions that ask.")] = 64
    zipf: Annotated[float, Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1
    groups: Annotated[int, Option(min=1, max=16, help="Worker groups of one rank each.")] = 4
    clients: Annotated[int, Option(min=1, max=1024, help="Turns that are under way at once.")] = 16
    model: ModelOrDemo = None
    duration: Annotated[float, Option(min=1.0, help="Measured seconds of each policy.")] = 60.0
    warmup: Annotated[float, Option(min=0.0, help="Seconds before that.")] = 20.0
    seed: Seed = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPlan:
    """`ryz bench routing`: the traffic of sessions, and the modelled groups that take it."""

    policies: Policies = ("hybrid", "sticky", "round_robin", "least_loaded")
    sessions: Annotated[int, Option(min=1, max=100_000, help="Sessions that ask.")] = 64
    zipf: Annotated[float, Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1
    groups: Annotated[int, Option(min=1, max=64, help="Worker groups, modelled.")] = 4
    load: Annotated[float, Option(min=0.01, max=2.0, help="Share of all groups' time that is asked for.")] = (
        0.7
    )
    duration: Annotated[float, Option(min=10.0, max=3600.0, help="Seconds of virtual time.")] = 300.0
    seed: Seed = 1
    store: Annotated[bool, Option("--store/--no-store", help="Groups have the KV store.")] = True
    sizes: Annotated[
        Sequence[int], Option(help="Fleets to time decisions in, as numbers of groups."), Numbers(1000)
    ] = (4, 64)
