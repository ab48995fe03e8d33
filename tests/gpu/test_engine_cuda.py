"""The torch path on a GPU against the same path on the CPU: logits, CUDA graph decodes, memory and engine."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain import cuda_graphs
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.cuda_graphs import CudaCapture
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank import rank_process as rank
from services.worker.engine.rank.compute import Compute
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineRefused
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.decode_plans import decode_plans
from tests.kits.engine.devices import BF16_ERROR, FAMILIES, config, relative_error
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, Blocks, generate, new_sequence, plan_logits
from tests.kits.engine.small_models import small_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]
GPUS = torch.cuda.device_count()
PROMPTS = [[5, 9, 2, 77, 140] * 8, [3, 1, 4]]


model = small_models({family: (family, changes) for family, changes in FAMILIES.items()})


def on_gpu(
    checkpoint: Checkpoint,
    shape: ModelConfig,
    collectives: Collectives,
    num_blocks: int,
    *,
    dtype: torch.dtype,
    recorded: bool,
) -> Compute:
    placement = Placement(torch.device("cuda", 0), dtype)
    model = Decoder(checkpoint, shape, collectives, placement)
    cache = KVCache(shape, PoolSizes(num_blocks), collectives.rank, collectives.world, placement)
    return PlainCompute(model, cache, CudaCapture(placement.device) if recorded else None)


def gpu_logits(
    model: Path, dtype: torch.dtype, recorded: bool, plans: list[StepPlan] | None = None
) -> list[Tensor]:
    compute = partial(on_gpu, dtype=dtype, recorded=recorded)
    return plan_logits(model, 1, plans or decode_plans(), compute=compute)


def chunked_plans() -> list[StepPlan]:
    """Two prompts in chunks of 30 tokens, the second beside decodes of the first; then decodes of both."""
    blocks, draw = Blocks(64), torch.Generator().manual_seed(4)
    first, second = torch.randint(0, 203, (2, 110), generator=draw).tolist()
    plans = [
        StepPlan(
            step_id=at,
            admit=[new_sequence(1, first[:90])] if at == 0 else [],
            chunks=[blocks.chunk(1, at, first[at : at + 30], sample=at == 60)],
        )
        for at in range(0, 90, 30)
    ]
    for step, at in enumerate(range(0, 90, 30)):
        chunks = [
            blocks.chunk(1, 90 + step, [first[90 + step]]),
            blocks.chunk(2, at, second[at : at + 30], sample=at == 60),
        ]
        admit = [new_sequence(2, second[:90])] if at == 0 else []
        plans.append(StepPlan(step_id=100 + step, admit=admit, chunks=chunks))
    for step in range(10):
        chunks = [
            blocks.chunk(number, at, [text[at]])
            for number, at, text in ((1, 93 + step, first), (2, 90 + step, second))
        ]
        plans.append(StepPlan(step_id=200 + step, chunks=chunks))
    return plans


@pytest.mark.parametrize("recorded", [False, True])
def test_fp32_equals_the_cpu(model: Path, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32, "TF32 has 10 bits of mantissa"
    monkeypatch.setattr(cuda_graphs, "MIN_BLOCKS", 4)
    expected = plan_logits(model, 1, decode_plans())
    for found, wanted in zip(gpu_logits(model, torch.float32, recorded), expected, strict=True):
        assert found.device.type == "cpu"
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize("recorded", [False, True])
def test_prompts_in_chunks_beside_decodes_equal_the_cpu(model: Path, recorded: bool) -> None:
    plans = chunked_plans()
    expected = plan_logits(model, 1, plans)
    for found, wanted in zip(gpu_logits(model, torch.float32, recorded, plans), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize("recorded", [False, True])
def test_bf16_is_near_to_the_cpu_in_fp32(model: Path, recorded: bool) -> None:
    expected = plan_logits(model, 1, decode_plans())
    assert 1e-4 < relative_error(gpu_logits(model, torch.bfloat16, recorded), expected) < BF16_ERROR


def test_recorded_decodes_equal_those_op_by_op_in_bf16(model: Path) -> None:
    eager, recorded = (gpu_logits(model, torch.bfloat16, how) for how in (False, True))
    # padding selects other kernels, so only rounding may differ
    assert relative_error(recorded, eager) < BF16_ERROR


def test_the_cache_takes_its_share_of_the_free_memory(model: Path) -> None:
    free = torch.cuda.mem_get_info(0)[0]
    _, ready = rank.load(config(model, kv_memory_share=0.05), SingleRank(), 0.0)
    assert 0.03 * free < ready.kv_cache_bytes < 0.051 * free
    assert ready.kv_format == "bf16"


def test_a_cache_beyond_the_gpu_is_refused_before_loading(model: Path) -> None:
    with pytest.raises(ModelError, match=r"kv_cache_tokens=2147483648 needs .*cuda:0 has .* in all"):
        rank.load(config(model, kv_cache_tokens=2**31), SingleRank(), 0.0)


async def tokens_of(
    model: Path, world: int, device: str, dtype: str = "auto"
) -> tuple[list[list[int]], EngineInfo]:
    options = rank_options(
        model=model,
        tensor_parallel=world,
        kv_cache_tokens=512 * 16,
        device="cuda" if device == "cuda" else "cpu",
        dtype="fp32" if dtype == "fp32" else "auto",
    )
    engine = RankEngine(options)
    try:
        info = await engine.start()
        return await generate(engine, PROMPTS, 40, [GREEDY, GREEDY]), info
    finally:
        await engine.stop()


async def test_an_engine_of_one_gpu_says_what_the_cpu_says(model: Path) -> None:
    expected, _ = await tokens_of(model, 1, "cpu")
    found, info = await tokens_of(model, 1, "cuda", "fp32")
    assert found == expected
    assert info.ranks[0].kernels == "plain cuda fp32"


async def test_an_engine_computes_in_bf16_by_default(model: Path) -> None:
    found, info = await tokens_of(model, 1, "cuda")
    assert [len(made) for made in found] == [40, 40]
    assert (info.ranks[0].kernels, info.kv_format) == ("plain cuda bf16", "bf16")


@pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, torch finds {GPUS}")
async def test_an_engine_of_two_gpus_says_what_the_cpu_says(model: Path) -> None:
    expected, _ = await tokens_of(model, 2, "cpu")
    assert (await tokens_of(model, 2, "cuda", "fp32"))[0] == expected


async def test_more_ranks_than_gpus_are_refused(model: Path) -> None:
    world = 1 << GPUS.bit_length()  # a power of two, so that it divides the model's 8 heads
    if world > 8:
        pytest.skip(f"the models have 8 heads, too few for more ranks than the {GPUS} GPUs")
    with pytest.raises(EngineRefused, match=f"device=cuda with {world} ranks"):
        await tokens_of(model, world, "cuda")
