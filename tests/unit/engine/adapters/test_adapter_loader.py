"""The loader of a rank: orders in their order, slots that change between steps only, errors as answers."""

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.adapters.inspection import inspect_adapter
from services.worker.engine.adapters.loader import AdapterLoader
from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.rank_messages import FrameKind
from tests.kits.adapters.handmade import DEMO, write_peft
from tests.kits.waiting import PATIENCE_S


class Slots:
    """Stands for a `Compute`: notes what is put into slots."""

    def __init__(self, adapts: bool = True, broken: bool = False) -> None:
        self.adapts, self.broken = adapts, broken
        self.collectives = SimpleNamespace(rank=0, world=1)
        self.put: list[tuple[int, AdapterWeights | None]] = []

    def prepare_adapter(self, weights: AdapterWeights) -> AdapterWeights:
        if self.broken:
            raise RuntimeError("no idea")
        return weights

    def set_adapter(self, slot: int, prepared: AdapterWeights | None) -> None:
        self.put.append((slot, prepared))


class Rank:
    """A loader whose answers are awaited."""

    def __init__(self, slots: Any) -> None:
        self.answers: SimpleQueue[AdapterLoaded] = SimpleQueue()
        self.loader = AdapterLoader(DEMO, self._report)
        self.loader.attach(slots)

    def _report(self, kind: FrameKind, message: AdapterLoaded) -> None:
        assert kind is FrameKind.ADAPTER_LOADED
        self.answers.put(message)

    def load(
        self, source: Path | str, slot: int = 0, after_step: int = 0, fingerprint: str = ""
    ) -> AdapterLoaded:
        given = fingerprint or (inspect_adapter(Path(source), DEMO).fingerprint if source else "")
        self.loader.load(
            LoadAdapter(order_id=7, slot=slot, source=str(source), fingerprint=given, after_step=after_step)
        )
        return self.answers.get(timeout=PATIENCE_S)


def test_a_slot_changes_with_the_first_step_after_that_of_the_order(tmp_path: Path) -> None:
    slots = Slots()
    rank = Rank(slots)
    source = write_peft(tmp_path / "a")
    answer = rank.load(source, slot=2, after_step=5)
    assert (answer.order_id, answer.error) == (7, "")
    assert answer.num_bytes == inspect_adapter(source, DEMO).num_bytes
    for step_id in (4, 5):
        rank.loader.put_due(step_id)
        assert slots.put == []
    rank.loader.put_due(6)
    assert [slot for slot, weights in slots.put if weights is not None] == [2]
    rank.loader.put_due(7)
    assert len(slots.put) == 1
    assert rank.load("", slot=2, after_step=7).num_bytes == 0
    rank.loader.put_due(8)
    assert slots.put[1:] == [(2, None)]


def test_orders_of_one_slot_are_followed_in_their_order(tmp_path: Path) -> None:
    slots = Slots()
    rank = Rank(slots)
    source = write_peft(tmp_path / "a")
    for order in (source, "", source, ""):
        assert rank.load(order).error == ""
    rank.loader.put_due(1)
    assert [weights is not None for _, weights in slots.put] == [True, False, True, False]


@pytest.mark.parametrize(
    ("slots", "error"),
    [
        (Slots(adapts=False), "this rank computes without adapters"),
        (Slots(broken=True), "cannot be loaded: RuntimeError: no idea"),
    ],
)
def test_what_goes_wrong_is_answered_and_empties_the_slot(tmp_path: Path, slots: Slots, error: str) -> None:
    rank = Rank(slots)
    answer = rank.load(write_peft(tmp_path / "a"), slot=1)
    assert error in answer.error
    assert answer.num_bytes == 0
    rank.loader.put_due(1)
    assert slots.put == [(1, None)]


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer = Rank(Slots()).load(tmp_path / "none", fingerprint="0" * 32)
    assert answer.error == f"{tmp_path / 'none'} does not exist; give a PEFT directory or a GGUF file"
