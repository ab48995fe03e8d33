"""The plan of `ryz bench engine`: every combination of precision, ranks and batch size is a row."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Numbers, Word, Words
from services.worker.rank_protocol.run_config import Kernels, KVDtype, Quantize

PEER_PACKAGES = {"transformers": ("transformers",), "llama.cpp": ("llama_cpp", "gguf")}
_KINDS, _KV, _HOW = get_args(Quantize), get_args(KVDtype), get_args(Kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The options of `ryz bench engine`."""

    model: Annotated[Path, Option(help="Model directory in Hugging Face format.")]
    quantize: Annotated[
        Sequence[Quantize], Option(help="none or int8; both with a comma between them."), Words(_KINDS)
    ] = ("none",)
    tp: Annotated[
        Sequence[int], Option(help="Ranks that compute together, one number after the other."), Numbers(64)
    ] = (1,)
    threads: Annotated[int, Option(min=0, max=1024, help="Threads of each rank; 0: cores / ranks.")] = 0
    batches: Annotated[
        Sequence[int], Option(help="Sequences at once, one number after the other."), Numbers(512)
    ] = (1, 4, 8, 16)
    prompt: Annotated[int, Option(min=1, help="Tokens of each prompt; they are random.")] = 128
    tokens: Annotated[int, Option(min=2, help="Tokens generated for each prompt.")] = 48
    repeats: Annotated[int, Option(min=1, max=100, help="Measured runs; the median counts.")] = 3
    kernels: Annotated[Kernels, Option(help="auto, native or plain."), Word(_HOW)] = "auto"
    kv_dtype: Annotated[KVDtype, Option(help="Type of the KV cache: auto, fp32 or fp16."), Word(_KV)] = "auto"
    peers: Annotated[
        list[str], Option("--peer", help="Measure transformers or llama.cpp in turns; may be repeated.")
    ] = field(default_factory=list)
    independent: Annotated[
        bool, Option("--independent", help="For each tp above 1: ranks that work alone, side by side.")
    ] = False
    http: Annotated[
        bool, Option("--http", help="The same through a whole stack, in turns; needs the memory twice.")
    ] = False

    def threads_of(self, world: int) -> int:
        """Return the threads of each of `world` ranks."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // world)

    def num_steps(self) -> int:
        """Return how often the measurement reports progress."""
        runs = (self.repeats + 1) * len(self.batches) * (1 + len(self.peers) + self.http)
        split = sum(world > 1 for world in self.tp) * self.independent
        each = len(self.tp) * (3 + self.http + runs) + len(self.peers) + split * (2 + 3 * (self.repeats + 1))
        return len(self.quantize) * each


def precision_of(quantize: Quantize) -> str:
    """Return the type of the weights that the engine computes with."""
    return "int8" if quantize == "int8" else "fp32"
