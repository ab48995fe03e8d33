"""The loss in perplexity from bf16, INT8 and compressed KV caches, for the shipped model on held-out text.

Every token is predicted as in serving: by the runner over the paged cache, many texts in a batch. The
figures are in docs/decisions/0009-compiled-kernels.md.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import NoKernels, targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import BLOCK_SIZE, StepPlan
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_threads import Blocks, ComputeFactory, new_sequence, plain_compute
from training import bpe, evaluate, prose
from training.batches import SampleSource, TrainingSample
from training.dialogues import draw_conversation
from training.export import load_model

DEMO = Path(__file__).parents[3] / "models" / "demo"
SEED = 20_240_607
NUM_TALKS = 40
LIMIT = 0.01  # largest relative increase of the perplexity


def native(
    precision: Precision, kv_dtype: torch.dtype, target: str | None = None, cold: ColdZone | None = None
) -> ComputeFactory:
    """Compiled kernels at a precision; skips the test where there are none."""
    try:
        compiled = kernels(target)
    except NoKernels as error:
        pytest.skip(f"no compiled kernels here: {error}")

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        weights = NativeWeights.load(
            open_source(checkpoint, config, collectives), config, compiled, precision
        )
        options = NativeOptions(kv_dtype=kv_dtype, cold=cold, spin=False)
        sizes = PoolSizes(num_blocks)
        return NativeCompute(compiled, config, weights, collectives, sizes=sizes, options=options)

    return make


@cache
def texts(kind: str) -> tuple[TrainingSample, ...]:
    """Held-out samples: conversations whose answers are weighted, or prose."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    if kind == "answers":
        source, rng = SampleSource(tokenizer, SEED, 2048), Random(SEED)
        talks = [draw_conversation(rng, turns=rng.randint(1, 8)) for _ in range(NUM_TALKS)]
        return tuple(source.encode(talk, 0.0) for talk in talks)
    bos = bpe.special_ids(tokenizer)[bpe.BOS]
    return tuple(
        TrainingSample([bos, *ids], [1.0] * (len(ids) + 1))
        for topic in prose.load_topics(held_out=True)
        if (ids := tokenizer.encode("\n".join(topic.paragraphs), add_special_tokens=False).ids)
    )


def perplexity(samples: Sequence[TrainingSample], compute: ComputeFactory) -> float:
    """Exponential of the mean cross-entropy over the weighted tokens, each predicted by a decode step."""
    num_blocks = sum(-(-len(sample.tokens) // BLOCK_SIZE) for sample in samples)
    num_blocks += num_blocks % 7 == 0  # see `Blocks`
    with open_checkpoint(DEMO) as checkpoint:
        computing = compute(checkpoint, read_config(DEMO), SingleRank(), num_blocks)
    runner, blocks = Runner(computing), Blocks(num_blocks)
    plan = StepPlan(step_id=0, admit=[new_sequence(i, one.tokens) for i, one in enumerate(samples)])
    runner.compute_logits(plan)
    total = count = 0.0
    for index in range(max(len(sample.tokens) for sample in samples) - 1):
        going = [(i, one) for i, one in enumerate(samples) if index + 1 < len(one.tokens)]
        chunks = [blocks.chunk(i, index, one.tokens[index : index + 1]) for i, one in going]
        logits = runner.compute_logits(StepPlan(step_id=index + 1, chunks=chunks))[1]
        assert logits is not None
        wanted = torch.tensor([one.tokens[index + 1] for _, one in going])
        weights = torch.tensor([one.weights[index + 1] for _, one in going])
        total += float((F.cross_entropy(logits, wanted, reduction="none") * weights).sum())
        count += float(weights.sum())
    if isinstance(computing, NativeCompute):
        computing.close()
    return math.exp(total / count)


@cache
def plain_perplexity(kind: str) -> float:
    return perplexity(texts(kind), plain_compute)


def loss(kind: str, compute: ComputeFactory) -> float:
    """The relative increase of the perplexity over full precision."""
    return perplexity(texts(kind), compute) / plain_perplexity(kind) - 1


@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_the_measure_is_that_of_the_training(kind: str) -> None:
    model, _ = load_model(DEMO)
    assert plain_perplexity(kind) == pytest.approx(evaluate.perplexity(model, texts(kind)), rel=1e-4)


@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_kernels_in_full_precision_lose_nothing(kind: str) -> None:
    assert abs(loss(kind, native("fp32", torch.float32))) < 1e-5


@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_half_precision_keys_and_values_lose_next_to_nothing(kind: str) -> None:
    assert 0 < abs(loss(kind, native("fp32", torch.float16))) < LIMIT / 10


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_bf16_loses_next_to_nothing(kind: str, kv_dtype: torch.dtype) -> None:
    assert 0 < abs(loss(kind, native("bf16", kv_dtype))) < LIMIT / 5


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_int8_loses_less_than_one_percent(kind: str, kv_dtype: torch.dtype, target: str) -> None:
    assert 0 < abs(loss(kind, native("int8", kv_dtype, target))) < LIMIT


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("kind", ["answers", "prose"])
def test_a_cold_zone_loses_less_than_half_a_percent(kind: str, precision: Precision, target: str) -> None:
    """Compares with the same weights and an uncompressed cache: the loss from the cold zone alone."""
    zone = ColdZone(1, (True,) * read_config(DEMO).num_layers)
    exact = loss(kind, native(precision, torch.float16, target))
    change = loss(kind, native(precision, torch.float16, target, zone)) - exact
    assert change != 0
    assert -LIMIT < change < LIMIT / 2  # the prose is short: a perturbation may also lower its perplexity
