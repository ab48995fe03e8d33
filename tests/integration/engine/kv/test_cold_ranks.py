"""The fp8 cold zone in rank processes: settings, the reported name, and the same tokens in any batch."""

from pathlib import Path
from typing import Any

import pytest

from services.worker.engine.native.build import targets
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineRefused
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
PROMPTS = [[(11 * i + 5 * j) % 200 for i in range(size)] for j, size in enumerate((120, 9, 64, 33))]
DRAWN = EngineSampling(temperature=1, seed=5)


def engine(model: Path, **changes: Any) -> RankEngine:
    options: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 8192, "kv_cold": "fp8"} | changes
    return RankEngine(rank_options(model=model, **options))


@pytest.mark.parametrize("world", [1, 2])
async def test_company_changes_no_token(model: Path, world: int) -> None:
    """Batches mix sequences shorter than the hot zone with mostly compressed ones."""
    samplings = [GREEDY, DRAWN, GREEDY, DRAWN]
    ranks = engine(model, tensor_parallel=world, kv_dtype="fp16")
    try:
        info = await ranks.start()
        assert info.kv_format == "fp16+fp8:16:all"
        assert all(rank.kernels.endswith("float16 KV, fp8 behind") for rank in info.ranks)
        together = await generate(ranks, PROMPTS, 60, samplings)
        for index, prompt in enumerate(PROMPTS):
            first_id = 10 * (index + 1)
            (alone,) = await generate(ranks, [prompt], 60, [samplings[index]], first_id)
            assert alone == together[index]
    finally:
        await ranks.stop()


async def test_layers_that_there_are_not_are_refused(model: Path) -> None:
    ranks = engine(model, kv_cold_layers="0-9")
    try:
        with pytest.raises(
            EngineRefused, match=r"kv_cold_layers=0-9: .* write `all`, or something like `0-2`"
        ):
            await ranks.start()
    finally:
        await ranks.stop()


async def test_plain_kernels_do_not_serve_it(model: Path) -> None:
    ranks = engine(model, kernels="plain")
    try:
        with pytest.raises(EngineRefused, match="kv_cold=fp8 needs the native kernels; set kernels=auto"):
            await ranks.start()
    finally:
        await ranks.stop()
