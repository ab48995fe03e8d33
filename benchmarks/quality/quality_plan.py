"""The plan of `ryz bench quality`: precisions that are compared with fp32 on one text and some chats."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Words
from services.worker.rank_protocol.run_config import Quantize

QUALITY_PEERS = ("llama.cpp",)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """The options of `ryz bench quality`."""

    model: Annotated[Path, Option(help="Directory, .gguf file or name of the model.")]
    quantize: Annotated[
        Sequence[Quantize], Option(help="What is compared with fp32; several with commas between them."),
        Words(get_args(Quantize)),
    ] = ("int8",)  # fmt: skip
    tokens: Annotated[int, Option(min=2, max=100_000, help="Tokens of the text, at least so many.")] = 20_000
    window: Annotated[
        int, Option(min=2, max=8192, help="The text is cut into windows of so many tokens, read one by one.")
    ] = 512
    chats: Annotated[int, Option(min=0, max=50, help="Questions whose answers by fp32 are compared.")] = 50
    answer: Annotated[int, Option(min=1, max=1024, help="Tokens of an answer at most.")] = 64
    threads: Annotated[int, Option(min=0, max=1024, help="Threads; 0: one for each core.")] = 0
    peers: Annotated[
        list[str], Option("--peer", help="llama.cpp: its F32, Q8_0 and Q4_0 of the same weights, too.")
    ] = field(default_factory=list)
