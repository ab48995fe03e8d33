"""The options of benchmarks of engines and their parts, as the plans that a measurement gets.

A field's note declares the option: its help, bounds, and how a list is read from one text.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from typer import Option

from benchmarks.lib.options import Numbers, Word, Words
from services.worker.domain.speculation.speculation import DRAFT_TOKENS
from services.worker.rank_protocol.run_config import Device, Kernels, KVDtype, Precision, PrecisionChoice

Model = Annotated[Path, Option(help="Directory, .gguf file or name of the model.")]
Precisions = Annotated[
    Sequence[Precision],
    Option(help="fp32, bf16, int8 or codes; several with commas between them."),
    Words(get_args(Precision)),
]
OnePrecision = Annotated[
    Precision, Option(help="fp32, bf16, int8 or codes."), Word(get_args(Precision))
]  # fmt: skip
Threads = Annotated[int, Option(min=0, max=1024, help="Threads of each rank; 0: cores / ranks.")]
TensorParallel = Annotated[int, Option(min=1, max=64, help="Ranks of each group.")]
Peers = Annotated[
    list[str],
    Option(
        "--peer",
        metavar="NAME[:TYPE,...]",
        help="transformers, llama.cpp, vllm or openvino, in turns with ours; TYPE: its types of weights. "
        "May be repeated.",
    ),
]
PeerEnvs = Annotated[
    Path | None,
    Option(help="Directory of the peers' Python environments: transformers, llama, vllm, openvino."),
]


def model_name(model: Path | None, unnamed: str = "demo") -> str:
    """Return the name of a model in reports: its directory's, or its file's without the ending."""
    if model is None:
        return unnamed
    return model.stem if model.suffix == ".gguf" else model.resolve().name


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """`ryz bench engine`: every combination of precision, ranks and batch size is a row."""

    model: Model
    precision: Precisions = ("fp32",)
    tp: Annotated[
        Sequence[int], Option(help="Ranks that compute together, one number after the other."), Numbers(64)
    ] = (1,)
    threads: Threads = 0
    batches: Annotated[
        Sequence[int], Option(help="Sequences at once, one number after the other."), Numbers(512)
    ] = (1, 4, 8, 16)
    prompt: Annotated[int, Option(min=1, help="Tokens of each prompt; they are random.")] = 128
    tokens: Annotated[int, Option(min=2, help="Tokens generated for each prompt.")] = 48
    repeats: Annotated[int, Option(min=1, max=100, help="Measured runs; the median counts.")] = 3
    kernels: Annotated[
        Kernels, Option(help="auto, native, avx512, avxvnni, avx2 or plain."), Word(get_args(Kernels))
    ] = "auto"
    kv_dtype: Annotated[
        KVDtype, Option(help="Type of the KV cache: auto, fp32 or fp16."), Word(get_args(KVDtype))
    ] = "auto"
    device: Annotated[
        Device, Option(help="cpu or cuda, whose precisions are fp32 and bf16."), Word(get_args(Device))
    ] = "cpu"
    token_budget: Annotated[int, Option(min=1, help="Tokens of a step: RYZ_TOKEN_BUDGET.")] = 512
    peers: Peers = field(default_factory=list)
    peer_envs: PeerEnvs = None
    quality: Annotated[
        int,
        Option(min=0, max=100_000, help="Compare the precisions with fp32 on so many tokens, too; 0: not."),
    ] = 0
    independent: Annotated[
        bool, Option("--independent", help="For each tp above 1: ranks that work alone, side by side.")
    ] = False
    http: Annotated[
        bool, Option("--http", help="The same through a whole stack, in turns; needs the memory twice.")
    ] = False

    def threads_of(self, world: int) -> int:
        """Return the threads of each of `world` ranks."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // world)

    def num_steps(self, peers: int = 0) -> int:
        """Return how often the measurement reports progress; `peers`: of all precisions, each type once."""
        runs = (self.repeats + 1) * len(self.batches)
        split = sum(world > 1 for world in self.tp) * self.independent
        own = len(self.tp) * (3 + self.http + runs * (1 + self.http)) + split * (2 + 3 * (self.repeats + 1))
        return len(self.precision) * own + peers * (1 + len(self.tp) * runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarPlan:
    """`ryz bench grammar`: decoding under JSON schemas, in turns with free decoding."""

    model: Model
    precision: OnePrecision = "int8"
    tensor_parallel: TensorParallel = 1
    threads: Threads = 0
    batch: Annotated[int, Option(min=1, max=512, help="Sequences at once.")] = 8
    prompt: Annotated[int, Option(min=1, help="Tokens of each prompt; they are random.")] = 64
    tokens: Annotated[int, Option(min=8, help="Tokens generated for each prompt.")] = 128
    repeats: Annotated[int, Option(min=1, max=100, help="Measured runs; the median counts.")] = 5

    @property
    def threads_each(self) -> int:
        """The threads of each rank."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.tensor_parallel)

    def num_steps(self) -> int:
        """Return how often the measurement reports progress."""
        return 2 + 4 * (self.repeats + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """`ryz bench mixed`: sequences that decode, and prompts that come meanwhile."""

    model: Model
    precision: OnePrecision = "int8"
    tensor_parallel: TensorParallel = 1
    threads: Threads = 0
    streams: Annotated[int, Option(min=1, max=256, help="Sequences that decode.")] = 16
    prompt: Annotated[int, Option(min=2, help="Tokens of each prompt; they are random.")] = 4000
    interval: Annotated[float, Option(min=0.01, help="Seconds between two prompts.")] = 1.0
    seconds: Annotated[float, Option(min=1.0, max=3600.0, help="Measured seconds of a round.")] = 30.0
    targets: Annotated[
        Sequence[int], Option(help="RYZ_ITL_TARGET_MS, one after the other; 0: none."), Numbers(60_000, 0)
    ] = (0, 100)
    rounds: Annotated[int, Option(min=1, max=100, help="Rounds of each target, in turns.")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPlan:
    """`ryz bench speculation`: answers with and without draft tokens."""

    model: Model
    precision: OnePrecision = "int8"
    tensor_parallel: TensorParallel = 1
    threads: Threads = 0
    batches: Annotated[
        Sequence[int], Option(help="Sequences at once, one number after the other."), Numbers(64)
    ] = (1, 4)
    tokens: Annotated[int, Option(min=2, help="Tokens of each answer.")] = 200
    draft_model: Annotated[
        Path | None,
        Option(help="Path or name of a draft model, which is measured as well; left out: none."),
    ] = None
    draft_precision: Annotated[
        PrecisionChoice,
        Option(help="auto, fp32, bf16, int8 or codes, of the draft model."),
        Word(get_args(PrecisionChoice)),
    ] = "auto"
    draft_tokens: Annotated[int, Option(min=1, max=32, help="Guesses of one sequence in a step.")] = (
        DRAFT_TOKENS
    )
    repeats: Annotated[int, Option(min=1, max=100, help="Measured answers; the median counts.")] = 5


TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
TURN_STEPS = 8  # of `ryz bench adapters`, of one kind before those of the other


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersPlan:
    """`ryz bench adapters`: every combination of precision, rank and batch size is a row."""

    model: Model
    precision: Precisions = ("int8",)
    ranks: Annotated[
        Sequence[int], Option(help="Ranks of the adapters, one after the other."), Numbers(1024)
    ] = (8, 16, 32, 64)
    batches: Annotated[
        Sequence[int],
        Option(help="Sequences at once, each with an adapter of its own, one number after the other."),
        Numbers(512),
    ] = (1, 8, 16)
    targets: Annotated[
        Sequence[str], Option(help="Matrices that adapters have, with commas between them."), Words(TARGETS)
    ] = TARGETS
    threads: Threads = 0
    prompt: Annotated[int, Option(min=1, help="Tokens of each prompt; they are random.")] = 64
    turns: Annotated[
        int, Option(min=1, max=1000, help="Turns of eight steps, of the base and with adapters each.")
    ] = 12

    @property
    def length(self) -> int:
        """The tokens of a sequence."""
        return self.prompt + self.turns * TURN_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """`ryz bench quality`: precisions that are compared with fp32 on one text and some chats."""

    model: Model
    precision: Precisions = ("int8",)
    reference: Annotated[
        Path | None,
        Option(help="Path or name of the model whose fp32 is compared with; left out: the same model."),
    ] = None
    tokens: Annotated[int, Option(min=2, max=100_000, help="Tokens of the text, at least so many.")] = 20_000
    window: Annotated[
        int, Option(min=2, max=8192, help="The text is cut into windows of so many tokens, read one by one.")
    ] = 512
    chats: Annotated[int, Option(min=0, max=50, help="Questions whose answers by fp32 are compared.")] = 50
    answer: Annotated[int, Option(min=1, max=1024, help="Tokens of an answer at most.")] = 64
    threads: Threads = 0
    peers: Peers = field(default_factory=list)
    peer_envs: PeerEnvs = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """`ryz bench context`: a decoded token over long contexts."""

    model: Model
    precision: OnePrecision = "int8"
    contexts: Annotated[
        Sequence[int], Option(help="Tokens of the context, one number after the other."), Numbers(2**20)
    ] = (4000, 32_000)
    tokens: Annotated[int, Option(min=1, max=10_000, help="Decoded and scored at each context.")] = 256
    attention: Annotated[
        list[str],
        Option(metavar="POLICY", help="As RYZ_ATTENTION, beside the exact one. May be repeated."),
    ] = field(default_factory=list)
    threads: Threads = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVColdPlan:
    """`ryz bench kv`: the shape of the attention op that is measured."""

    heads: Annotated[int, Option(min=1, max=256, help="Query heads.")] = 12
    kv_heads: Annotated[int, Option(min=1, max=256, help="Heads of keys and values.")] = 12
    head_dim: Annotated[int, Option(min=2, max=256, help="Numbers of a head.")] = 64
    batch: Annotated[int, Option(min=1, max=256, help="Sequences in a step.")] = 8
    contexts: Annotated[
        Sequence[int], Option(help="Tokens of each sequence, one after the other."), Numbers(131_072)
    ] = (512, 2048, 4096)
    threads: Annotated[int, Option(min=1, max=256, help="Threads that share an op.")] = 1
    repeats: Annotated[int, Option(min=1, max=10_000, help="Ops measured; the median counts.")] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesPlan:
    """`ryz bench collectives`: every backend and size is a row."""

    ranks: Annotated[int, Option(min=2, max=64, help="Ranks that take part.")] = 2
    backends: Annotated[
        Sequence[str], Option(help="shm or gloo, or both with a comma."), Words(("shm", "gloo"))
    ] = ("shm", "gloo")
    sizes: Annotated[Sequence[int], Option(help="Bytes to sum, multiples of 4."), Numbers(1 << 30)] = (
        8192,
        10_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneBenchPlan:
    """`ryz bench finetune`: each number of bits is a row."""

    model: Annotated[str, Option(help="The base: a name or a path.")] = "smollm2-135m"
    base_bits: Annotated[
        Sequence[int],
        Option(help="Of a weight of the base: 4, 16 or 32, with commas between them."),
        Numbers(32),
    ] = (16,)
    recompute: Annotated[
        bool, Option("--recompute", help="Each row once more, with layers computed again.")
    ] = False
    chats: Annotated[
        int, Option(min=1, max=200, help="Of the fact sheet in each row; about 58 tokens each.")
    ] = 60
    length: Annotated[int, Option(min=16, help="Tokens of a pack.")] = 1024
    rank: Annotated[int, Option(min=1, max=512, help="Of the adapter.")] = 16
    threads: Annotated[int, Option(min=0, max=1024, help="CPU threads; 0: all usable cores.")] = 0
    facts: Annotated[bool, Option("--facts", help="Learn the fact sheet, and ask for it.")] = False
    epochs: Annotated[int, Option(min=1, help="Passes over the fact sheet.")] = 8
    learning_rate: Annotated[float, Option(min=0, help="With --facts.")] = 1e-3
    seed: Annotated[int, Option(help="Of facts, order and first weights.")] = 0

    def num_steps(self) -> int:
        """Return how often progress is reported."""
        return len(self.base_bits) * (2 if self.recompute else 1) + (3 if self.facts else 0)
