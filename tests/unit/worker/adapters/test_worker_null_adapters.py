"""The null engine checks what its leader orders of adapters."""

import asyncio
from pathlib import Path

import pytest

from services.worker.rank_protocol.adapters import LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.worker.leader import null_engine

PROMPT = [*range(3, 33)]


def order(source: Path, *, after_step: int = 0) -> LoadAdapter:
    return LoadAdapter(order_id=1, slot=0, source=str(source), fingerprint="a" * 32, after_step=after_step)


def begin(step_id: int) -> StepPlan:
    """A step with a new sequence of slot 0."""
    chunk = Blocks(256).chunk(1, 0, PROMPT)
    return StepPlan(step_id=step_id, admit=[new_sequence(1, PROMPT, adapter=0)], chunks=[chunk])


async def test_a_slot_that_a_sequence_runs_with_is_not_changed(tmp_path: Path) -> None:
    engine = null_engine()
    await engine.start()
    await engine.load_adapter(order(tmp_path))
    await engine.submit(begin(1))
    with pytest.raises(EngineFailed, match="slot 0 is to be changed while a sequence runs with it"):
        await engine.load_adapter(order(tmp_path, after_step=1))


async def test_an_order_waits_for_its_step(tmp_path: Path) -> None:
    engine = null_engine()
    await engine.start()
    await engine.load_adapter(order(tmp_path))
    await engine.submit(begin(1))
    loading = asyncio.ensure_future(engine.load_adapter(order(tmp_path, after_step=2)))
    await asyncio.sleep(0)
    assert not loading.done()
    await engine.submit(StepPlan(step_id=2, release=[1]))
    assert (await loading).error == ""


async def test_orders_that_wait_end_with_the_engine(tmp_path: Path) -> None:
    engine = null_engine()
    await engine.start()
    loading = asyncio.ensure_future(engine.load_adapter(order(tmp_path, after_step=7)))
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineFailed, match="stopped"):
        await loading
