"""All comparisons of a model of the table with transformers: logits in any plan, and greedy tokens."""

import random
from functools import cache

import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.layers.unsupported import unsupported
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.decode_plans import EagerCapture
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import COMPUTES, ComputeFactory, plain_compute, plan_logits
from tests.kits.families.entries import FamilyEntry
from tests.kits.families.models import (
    ENTRIES,
    LENGTH,
    TEXTS,
    FamilyModel,
    family_model,
    served,
    text,
    transformers_greedy,
)
from tests.kits.families.step_plans import (
    NUM_BLOCKS,
    Rows,
    check_rows,
    greedy_plans,
    mixed_plans,
    random_plans,
)

GREEDY_PROMPT = LENGTH - 64
TOLERANCE = 1e-4  # of a logit, in fp32


def matrix(entries: dict[str, FamilyEntry]) -> list[tuple[str, int]]:
    """Names and numbers of ranks of all that is served."""
    return [(name, world) for name in served(entries) for world in ENTRIES[name].worlds]


def recorded_compute(
    checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
) -> Compute:
    """As on a GPU, where decode steps are recorded and replayed."""
    model = Decoder(checkpoint, config, collectives)
    cache = KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world)
    return PlainCompute(model, cache, EagerCapture())


def tiled_compute(
    checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
) -> Compute:
    """As torch serves on CPUs."""
    model = Decoder(checkpoint, config, collectives)
    cache = KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world)
    return PlainCompute(model, cache, tiled=True)


MODES: dict[str, ComputeFactory] = {**COMPUTES, "recorded": recorded_compute, "tiled": tiled_compute}


def computes_of(model: FamilyModel) -> list[str]:
    """The ways to compute that serve the model."""
    return ["plain", "native"] if unsupported(model.config) is None else ["plain"]


def check_mixed(model: FamilyModel, world: int, compute: str) -> None:
    """Whole and chunked prompts, decodes, mixed batches and shared blocks."""
    plans, rows = mixed_plans(*(text(key) for key in TEXTS))
    _check(model, world, compute, plans, rows)


def check_random(model: FamilyModel, world: int, compute: str, seed: int) -> None:
    """Random chunks, and sequences that give way and come back."""
    plans, rows = random_plans({key: text(key) for key in TEXTS}, random.Random(seed))
    assert sum(map(len, rows)) > 20
    assert any(plan.release for plan in plans)
    _check(model, world, compute, plans, rows)


def check_same_bits(model: FamilyModel, world: int, compute: str) -> None:
    """A token's logits have the same bits in any plan."""
    seen: dict[tuple[str, int], Tensor] = {}
    repeated = 0
    for seed in (1, 2):
        plans, rows = random_plans({key: text(key) for key in TEXTS}, random.Random(seed))
        computed = plan_logits(model.directory, world, plans, NUM_BLOCKS, MODES[compute])
        for found, wanted in zip(computed, rows, strict=True):
            for row, location in zip(found, wanted, strict=True):
                repeated += location in seen
                assert torch.equal(seen.setdefault(location, row), row), location
    assert repeated > 10


def check_greedy(model: FamilyModel, name: str, world: int, compute: str) -> None:
    """64 greedy tokens."""
    tokens = greedy_text(name)
    plans = greedy_plans(tokens, GREEDY_PROMPT)
    found = plan_logits(model.directory, world, plans, NUM_BLOCKS, MODES[compute])
    assert [int(rows[0].argmax()) for rows in found] == tokens[GREEDY_PROMPT:]


@cache
def greedy_text(name: str) -> list[int]:
    """The beginning of a text with 64 greedy tokens of one rank, which are also those of transformers.

    The first text is taken in which no two tokens are as likely as each other but for rounding.
    """
    for key in TEXTS:
        tokens = _continued(name, text(key)[:GREEDY_PROMPT])
        likeliest, closest = transformers_greedy(name, tokens, GREEDY_PROMPT)
        if closest > TOLERANCE:
            break
    assert likeliest == tokens[GREEDY_PROMPT:]
    return tokens


def _continued(name: str, tokens: list[int]) -> list[int]:
    """The tokens and what one rank continues them with, `LENGTH` together."""
    model = family_model(name)
    with open_checkpoint(model.directory) as checkpoint:
        runner = Runner(plain_compute(checkpoint, model.config, SingleRank(), NUM_BLOCKS))
    blocks, begin, admit = Blocks(NUM_BLOCKS), 0, [new_sequence(1, tokens)]
    while len(tokens) < LENGTH:
        part = blocks.chunk(1, begin, tokens[begin:])
        begin = len(tokens)
        result = runner.run_step(StepPlan(step_id=begin, admit=admit, chunks=[part]))
        tokens, admit = [*tokens, result.sampled[0].token_id], []
    return tokens


def _check(model: FamilyModel, world: int, compute: str, plans: list[StepPlan], rows: Rows) -> None:
    computed = plan_logits(model.directory, world, plans, NUM_BLOCKS, MODES[compute])
    check_rows(computed, rows, model.logits, TOLERANCE)
