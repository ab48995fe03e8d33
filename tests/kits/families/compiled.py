"""The compiled path in all its forms, and layers that no dense architecture has, for tests of the kernels."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import AttentionConfig, MlpConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.rank.compute import Compute
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import ComputeFactory, make_llama


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the kernels compute.

    Attributes:
        precision: Of the matrices.
        half: The KV cache has halves.
        hot_blocks: Of a cold zone in all layers; below 0: there is none.
    """

    precision: Precision = "fp32"
    half: bool = False
    hot_blocks: int = -1


FORMS = {
    "fp32": Form(),
    "bf16, fp16 KV": Form(precision="bf16", half=True),
    "int8, fp16 KV": Form(precision="int8", half=True),
    "fp8 behind": Form(half=True, hot_blocks=1),
}


def compiled(form: Form, target: str | None = None, threads: int = 1) -> ComputeFactory:
    """A factory of the compiled backend in one of its forms."""

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        library = kernels(target)
        weights = NativeWeights.load(
            open_source(checkpoint, config, collectives), config, library, form.precision
        )
        zone = None if form.hot_blocks < 0 else ColdZone(form.hot_blocks, (True,) * config.num_layers)
        kind = torch.float16 if form.half else torch.float32
        options = NativeOptions(threads, kind, zone, spin=False)
        sizes = PoolSizes(num_blocks)
        return NativeCompute(library, config, weights, collectives, sizes=sizes, options=options)

    return make


def with_config(config: ModelConfig, factory: ComputeFactory) -> ComputeFactory:
    """The same with another config than that of the directory."""
    return lambda checkpoint, _, collectives, num_blocks: factory(checkpoint, config, collectives, num_blocks)


# what dense architectures of the table leave out, on a small Llama with grouped heads
FEATURES: dict[str, tuple[Callable[[AttentionConfig], AttentionConfig], Callable[[MlpConfig], MlpConfig]]] = {
    "sinks, a window": (lambda a: replace(a, sinks=True, window=20), lambda m: m),
    "clamped SwiGLU, a soft cap": (
        lambda a: replace(a, softcap=2.0, scale=0.4),
        lambda m: replace(m, activation="clamped_swiglu"),
    ),
    "scaled ALiBi, clipped": (
        lambda a: replace(a, rope=None, alibi=True, alibi_scale=0.5, clip_qkv=0.8),
        lambda m: replace(m, activation="relu"),
    ),
    "gated GELU, sinks, a soft cap": (
        lambda a: replace(a, sinks=True, softcap=3.0, clip_qkv=1.5),
        lambda m: replace(m, activation="gelu"),
    ),
}


def feature_model(directory: Path, name: str) -> ModelConfig:
    """Writes a small Llama and the tensors that the feature needs; returns the config with it."""
    config = read_config(make_llama(directory))
    change_attention, change_mlp = FEATURES[name]
    layers = tuple(
        replace(layer, attention=change_attention(layer.attention), mlp=change_mlp(layer.dense_mlp))
        for layer in config.layers
    )
    tensors = load_file(directory / "model.safetensors")
    for index, layer in enumerate(layers):
        if layer.attention.sinks:
            draw = torch.Generator().manual_seed(index)
            tensors[f"model.layers.{index}.self_attn.sinks"] = torch.randn(config.num_heads, generator=draw)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return replace(config, layers=layers)


def in_one_piece(text: list[int]) -> list[StepPlan]:
    """A text in one step."""
    part = Blocks(64).chunk(1, 0, text)
    return [StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[part])]


def in_pieces(text: list[int], cuts: list[int]) -> list[StepPlan]:
    """A text cut at some places."""
    blocks, plans = Blocks(64), [StepPlan(step_id=1, admit=[new_sequence(1, text)])]
    for begin, end in pairwise([0, *cuts, len(text)]):
        plans.append(StepPlan(step_id=2, chunks=[blocks.chunk(1, begin, text[begin:end])]))
    return plans


def beside_others(text: list[int], others: list[list[int]]) -> list[StepPlan]:
    """The last token of a text in a step with others, after their prompts."""
    blocks, last = Blocks(64), len(text) - 1
    return [
        StepPlan(
            step_id=1, admit=[new_sequence(1, text)], chunks=[blocks.chunk(1, 0, text[:last], sample=False)]
        ),
        StepPlan(
            step_id=2,
            admit=[new_sequence(number, other) for number, other in enumerate(others, 2)],
            chunks=[blocks.chunk(number, 0, other[:-1]) for number, other in enumerate(others, 2)],
        ),
        StepPlan(
            step_id=3,
            chunks=[
                *(blocks.chunk(number, len(other) - 1, other[-1:]) for number, other in enumerate(others, 2)),
                blocks.chunk(1, last, text[last:]),
            ],
        ),
    ]


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Of all logits together, root-mean-square."""
    difference = torch.cat([(a - b).flatten() for a, b in zip(found, wanted, strict=True)])
    size = torch.cat([rows.flatten() for rows in wanted])
    return float(difference.square().mean().sqrt() / size.square().mean().sqrt())
