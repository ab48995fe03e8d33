"""The contract of engines that compute with adapters, over the null engine and over rank processes."""

import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.worker.null.adapter_files import inspect_null_adapter
from services.worker.null.engine import NullEngine
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.adapters import NO_ADAPTER, AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import Engine, StepPlan
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.shared_fork_server import sharing

PROMPT, COUNT = [*range(3, 33)], 8
FAMILY, RANK = "llama", 16


@dataclass
class Case:
    """An engine that is started, and two adapters for it.

    Attributes:
        files: By name.
        fingerprints: Of these.
    """

    engine: Engine
    files: dict[str, Path]
    fingerprints: dict[str, str]
    step_id: int = 0
    blocks: Blocks = field(default_factory=lambda: Blocks(256))
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def load(self, slot: int, name: str) -> AdapterLoaded:
        return await self.order(slot, str(self.files[name]), self.fingerprints[name])

    async def order(self, slot: int, source: str, fingerprint: str) -> AdapterLoaded:
        order = LoadAdapter(
            order_id=next(self.ids),
            slot=slot,
            source=source,
            fingerprint=fingerprint,
            after_step=self.step_id,
        )
        answer = await self.engine.load_adapter(order)
        assert answer.order_id == order.order_id
        return answer

    async def generate(self, *slots: int) -> list[list[int]]:
        """Greedy tokens after the prompt for each slot, all in one batch."""
        made: dict[int, list[int]] = {}
        admit = []
        for slot in slots:
            seq_id = next(self.ids)
            made[seq_id] = []
            admit.append(new_sequence(seq_id, PROMPT, adapter=slot))
        chunks = [self.blocks.chunk(seq_id, 0, PROMPT) for seq_id in made]
        for _ in range(COUNT):
            self.step_id += 1
            result = await self.engine.submit(StepPlan(step_id=self.step_id, admit=admit, chunks=chunks))
            admit = []
            for sampled in result.sampled:
                made[sampled.seq_id].append(sampled.token_id)
            chunks = [
                self.blocks.chunk(seq_id, len(PROMPT) + len(tokens) - 1, tokens[-1:])
                for seq_id, tokens in made.items()
            ]
        self.step_id += 1
        await self.engine.submit(StepPlan(step_id=self.step_id, release=list(made)))
        for seq_id in made:
            self.blocks.release(seq_id)
        return list(made.values())


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


# engines of ranks are not compiled
@pytest.fixture(params=["null", pytest.param("ranks", marks=pytest.mark.sources)])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    engine: Engine
    if request.param == "null":
        engine = NullEngine(
            tokens=[*range(50, 97)], num_blocks=256, vocab_size=257, context_length=2048, step_delay_s=0.0
        )
        files = {name: tmp_path / name for name in ("a", "b")}
        for name, path in files.items():
            path.write_text(name)
        fingerprints = {name: inspect_null_adapter(str(path)).fingerprint for name, path in files.items()}
    else:
        files, fingerprints, model = _of_ranks(tmp_path)
        options = {"threads": 1, "kv_cache_tokens": 8192, "kernels": "plain"}
        engine = RankEngine(rank_options(model=model, tensor_parallel=2, **options))
    info = await engine.start()
    assert info.adapters
    yield Case(engine, files, fingerprints)
    await engine.stop()


def _of_ranks(directory: Path) -> tuple[dict[str, Path], dict[str, str], Path]:
    """Copies of two adapters of a small model, their fingerprints, and the model."""
    # torch is imported for ranks alone
    from services.worker.adapters.inspection import inspect_adapter  # noqa: PLC0415
    from tests.kits.adapters.comparisons import adapter_files  # noqa: PLC0415
    from tests.kits.families.models import family_model  # noqa: PLC0415

    model = family_model(FAMILY).directory
    files = {
        name: shutil.copytree(path, directory / name) for name, path in adapter_files(FAMILY, RANK).items()
    }
    return files, {name: inspect_adapter(path, model).fingerprint for name, path in files.items()}, model


async def test_rows_of_one_batch_have_their_own_adapters(case: Case) -> None:
    loaded = [await case.load(0, "a"), await case.load(3, "b")]
    assert [one.error for one in loaded] == ["", ""]
    together = await case.generate(0, NO_ADAPTER, 3)
    alone = [(await case.generate(slot))[0] for slot in (0, NO_ADAPTER, 3)]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


async def test_an_adapter_computes_the_same_in_each_slot(case: Case) -> None:
    await case.load(0, "a")
    first = await case.generate(0)
    await case.load(5, "a")
    assert await case.generate(5) == first


async def test_an_adapter_replaces_the_one_of_its_slot(case: Case) -> None:
    await case.load(0, "a")
    first = await case.generate(0)
    await case.load(0, "b")
    second = await case.generate(0)
    await case.load(1, "b")
    assert second == await case.generate(1) != first


async def test_what_cannot_be_loaded_leaves_the_engine_well(case: Case, tmp_path: Path) -> None:
    before = await case.generate(NO_ADAPTER)
    answer = await case.order(0, str(tmp_path / "none"), "0" * 32)
    assert "none" in answer.error
    assert answer.error.count("\n") == 0
    assert await case.generate(NO_ADAPTER) == before
    assert (await case.load(0, "a")).error == ""
    assert await case.generate(0) != before


@pytest.mark.parametrize("how", ["never loaded", "emptied", "failed"])
async def test_a_sequence_of_an_empty_slot_ends_the_engine(case: Case, how: str, tmp_path: Path) -> None:
    if how != "never loaded":
        await case.load(0, "a")
        await case.generate(0)
        source = "" if how == "emptied" else str(tmp_path / "none")
        answer = await case.order(0, source, "" if how == "emptied" else "0" * 32)
        assert bool(answer.error) == (how == "failed")
    with pytest.raises(EngineFailed, match="slot 0"):
        await case.generate(0)


async def test_an_engine_that_has_stopped_loads_nothing(case: Case) -> None:
    await case.engine.stop()
    with pytest.raises(EngineFailed):
        await case.load(0, "a")


async def test_nothing_is_loaded_after_another_start(case: Case) -> None:
    await case.load(0, "a")
    await case.engine.stop()
    await case.engine.start()
    case.step_id = 0
    with pytest.raises(EngineFailed, match="slot 0"):
        await case.generate(0)
