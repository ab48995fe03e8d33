"""Groups of one host map the same packed weights, and say what groups say that pack their own."""

from pathlib import Path

import pytest

from services.worker.engine.native.build import targets
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import EngineInfo
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate
from tests.kits.engine.small_models import small_model

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
PROMPTS = [[(11 * i + 5 * j) % 200 for i in range(size)] for j, size in enumerate((60, 9, 33))]
SAMPLINGS = [GREEDY] * len(PROMPTS)
# 100 MB of weights: a share of less than 16 MiB gets no file
model = small_model(vocab_size=40_000, hidden_size=256, intermediate_size=512)


def engine(model: Path, world: int, packed: Path | None) -> RankEngine:
    directory = "" if packed is None else str(packed)
    return RankEngine(
        rank_options(
            model=model, threads=1, kv_cache_tokens=8192, tensor_parallel=world, packed_dir=directory
        )
    )


def mapped(info: EngineInfo) -> list[set[str]]:
    """The files of packed weights that each rank has mapped."""
    return [
        {
            line.split()[-1]
            for line in Path(f"/proc/{rank.pid}/maps").read_text().splitlines()
            if ".packed" in line
        }
        for rank in info.ranks
    ]


def packed_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.packed"))


def anonymous_bytes(info: EngineInfo) -> int:
    """Memory of the ranks that is in no file."""
    lines = [
        line
        for rank in info.ranks
        for line in Path(f"/proc/{rank.pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Anonymous:")
    ]
    assert len(lines) == len(info.ranks)
    return sum(int(line.split()[1]) * 1024 for line in lines)


async def test_the_group_that_packed_keeps_no_copy(model: Path, tmp_path: Path) -> None:
    alone, first, second = engine(model, 1, None), engine(model, 1, tmp_path), engine(model, 1, tmp_path)
    try:
        infos = [await group.start() for group in (alone, first, second)]
        weights = packed_bytes(tmp_path)
        own, packed, mapped_only = map(anonymous_bytes, infos)
        assert own - mapped_only > 0.9 * weights
        assert packed - mapped_only < 0.3 * weights
    finally:
        for group in (alone, first, second):
            await group.stop()


@pytest.mark.parametrize("world", [1, 2])
async def test_two_groups_map_one_file_of_each_share(world: int, model: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    alone, first, second = (
        engine(model, world, None),
        engine(model, world, packed),
        engine(model, world, packed),
    )
    try:
        assert mapped(await alone.start()) == [set()] * world
        wanted = await generate(alone, PROMPTS, 20, SAMPLINGS)
        await alone.stop()
        infos = [await first.start(), await second.start()]
        assert {rank.loaded_bytes for rank in infos[1].ranks} == {0}
        files = sorted(str(file) for file in packed.glob("*.packed"))
        assert len(files) == world
        for info in infos:
            assert sorted(file for found in mapped(info) for file in found) == files
        for group in (first, second):
            assert await generate(group, PROMPTS, 20, SAMPLINGS) == wanted
    finally:
        for group in (alone, first, second):
            await group.stop()


async def test_a_place_that_is_not_writable_serves_as_before(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    group = engine(model, 1, tmp_path / "file" / "packed")
    try:
        assert mapped(await group.start()) == [set()]
        assert len(await generate(group, PROMPTS, 5, SAMPLINGS)) == len(PROMPTS)
    finally:
        await group.stop()
