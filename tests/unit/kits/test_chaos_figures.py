"""Figures that chaos tests record: each test has one entry with its commit, and counters can be written."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.kits.chaos import figures
from tests.kits.chaos.storm.storm_stock import Stock


def test_each_test_has_its_place_and_the_commit_that_it_ran_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chaos.json"
    monkeypatch.setenv("RYZ_CHAOS_FIGURES", str(path))
    for number, commit in enumerate(("a", "b", "c")):
        monkeypatch.setattr(figures, "commit", lambda commit=commit: commit)
        figures.record(f"test_{number % 2}", number=number)
    output = json.loads(path.read_text())
    assert output.pop("machine")
    assert output == {"test_0": {"commit": "c", "number": 2}, "test_1": {"commit": "b", "number": 1}}


def test_what_a_stack_holds_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chaos.json"
    monkeypatch.setenv("RYZ_CHAOS_FIGURES", str(path))
    stock = Stock(processes=Counter(router=2), memory_mib={"router": 41.5}, zombies=1)
    figures.record("storm", before=stock.as_dict())
    before = json.loads(path.read_text())["storm"]["before"]
    assert before["processes"] == {"router": 2}
    assert before["memory_mib"] == {"router": 41.5}
    assert (before["zombies"], before["named_segments"]) == (1, [])
