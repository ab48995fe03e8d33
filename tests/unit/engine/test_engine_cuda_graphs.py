"""Padded decode steps with static inputs, as a CUDA graph needs them, replayed op by op on the CPU."""

from functools import partial
from pathlib import Path

import pytest
import torch

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain import cuda_graphs
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import Compute
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.decode_plans import STEPS, EagerCapture, decode_plans
from tests.kits.engine.rank_threads import Blocks, new_sequence, plan_logits
from tests.kits.engine.small_models import small_models


def graphed(
    capture: EagerCapture | None,
    checkpoint: Checkpoint,
    config: ModelConfig,
    collectives: Collectives,
    num_blocks: int,
) -> Compute:
    model = Decoder(checkpoint, config, collectives)
    return PlainCompute(
        model,
        KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world),
        EagerCapture() if capture is None else capture,
    )


model = small_models(
    {
        "llama": ("llama", {"max_position_embeddings": 300}),  # 19 blocks, which is no power of two
        "mistral": ("mistral", {"sliding_window": 20}),
        "qwen3": ("qwen3", {}),
    }
)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("unsampled", [-1, 1])
def test_padded_decodes_equal_those_op_by_op(
    model: Path, world: int, unsampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # small enough that block tables grow and that the sliding window is shorter than a table
    monkeypatch.setattr(cuda_graphs, "MIN_BLOCKS", 4)
    plans = decode_plans(unsampled)
    expected = plan_logits(model, world, plans)
    found = plan_logits(model, world, plans, compute=partial(graphed, None))
    for plan, rows, wanted in zip(plans, found, expected, strict=True):
        assert len(rows) == sum(part.sample for part in plan.chunks)
        torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=0)


def test_a_recording_is_made_once_for_each_size(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MIN_BLOCKS", 4)
    capture, plans = EagerCapture(), decode_plans()
    plan_logits(model, 1, plans, compute=partial(graphed, capture))
    # One recording has 8 rows for 5 sequences, whose longest has 5 or 6 blocks. The other has 2 rows for 2
    # sequences, whose longest grows from 40 to 64 tokens and so stays within 4 blocks.
    assert capture.recorded == 2
    assert capture.replayed == STEPS


def test_what_is_not_worth_a_recording_is_computed_op_by_op(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = decode_plans()
    for name, limit in {"MAX_SEQUENCES": 1, "MAX_KEYS": 2 * 16 * 16 - 1}.items():
        capture = EagerCapture()
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs, name, limit)
            plan_logits(model, 1, plans, compute=partial(graphed, capture))
        assert capture.recorded == 0


def test_steps_that_sample_nothing_are_computed_op_by_op(model: Path) -> None:
    capture, text = EagerCapture(), [7, 8, 9]
    blocks = Blocks(64)
    plans = [
        StepPlan(
            step_id=1, admit=[new_sequence(1, text)], chunks=[blocks.chunk(1, 0, text[:1], sample=False)]
        ),
        StepPlan(step_id=2, chunks=[blocks.chunk(1, 1, text[1:])]),
    ]
    found = plan_logits(model, 1, plans, compute=partial(graphed, capture))
    assert capture.recorded == 0
    torch.testing.assert_close(found[1], plan_logits(model, 1, plans)[1], atol=1e-4, rtol=0)


def test_padding_rows_leave_all_blocks_as_they_were(model: Path) -> None:
    caches = []

    def kept(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        cache = KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world)
        caches.append(cache)
        capture = EagerCapture() if len(caches) == 2 else None
        return PlainCompute(Decoder(checkpoint, config, collectives), cache, capture)

    plans = decode_plans()
    for _ in range(2):
        plan_logits(model, 1, plans, compute=kept)
    eager, padded = (
        torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers]) for cache in caches
    )
    own = caches[0].sizes.num_blocks * 16
    torch.testing.assert_close(padded[:, :, :own], eager[:, :, :own], atol=1e-4, rtol=0)
    assert not eager[:, :, own:].any()
    assert padded[:, :, own:].any()  # the padding rows wrote to blocks after the cache's own
