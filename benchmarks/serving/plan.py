"""The options of `ryz bench serving`; notes of fields are read as in `benchmarks/engine_plans.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from typer import Option

from benchmarks.lib.options import Numbers, Word, Words

Transport = Literal["http", "grpc", "realtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """`ryz bench serving`: requests in flight, and the stack that answers them."""

    concurrency: Annotated[
        Sequence[int], Option(help="Requests in flight, one level after the other."), Numbers(4096)
    ] = (1, 8, 32, 128)
    duration: Annotated[float, Option(min=0.2, help="Measured seconds at each level.")] = 5.0
    warmup: Annotated[float, Option(min=0.0, help="Seconds before that at each level.")] = 1.0
    tokens: Annotated[int, Option(min=1, max=4096, help="Tokens that each answer has.")] = 16
    stream: Annotated[bool, Option("--stream/--no-stream", help="Ask for streamed answers.")] = False
    url: Annotated[str, Option(help="Measure the stack at this address instead of an own one.")] = ""
    api_key: Annotated[str, Option(envvar="RYZ_API_KEY", help="With --url a key that requests carry.")] = ""
    model: Annotated[
        str, Option(help="With --url the model to ask; else the one whose tokenizer the own stack has.")
    ] = ""
    groups: Annotated[int, Option(min=1, max=16, help="Worker groups of the own stack.")] = 2
    transports: Annotated[
        Sequence[Transport],
        Option(help="APIs to ask, with commas between them: http, grpc, realtime."),
        Words(get_args(Transport)),
    ] = ("http",)
    grpc: Annotated[str, Option(help="With --url, where the stack answers by gRPC, as HOST:PORT.")] = ""
    peer: Annotated[
        Literal["", "dynamo"],
        Option(help="dynamo: measures it in turns with ours, by the same client. Needs --model DIR."),
        Word(("", "dynamo")),
    ] = ""
    peer_envs: Annotated[
        Path | None, Option(help="Directory of the peer's Python environment, which is called dynamo.")
    ] = None
    rounds: Annotated[int, Option(min=1, max=99, help="With --peer turns at each level; medians count.")] = 1
