"""Compiled kernels in the user's cache, where other checkouts of the same sources find them."""

from pathlib import Path

import pytest

from services.worker.engine.native import build
from services.worker.engine.native.build import ensure
from tests.kits.engine.small_program import answer_of, compiles, use_small_program, write_program


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small program instead of the kernels, and a separate cache folder."""
    use_small_program(tmp_path, monkeypatch)
    return tmp_path


@compiles
def test_another_checkout_of_the_same_sources_finds_it_in_the_cache(root: Path) -> None:
    made = ensure()
    kept = root / "cache" / "ryzanstein" / made.name
    assert answer_of(kept) == 1
    made.unlink()
    assert ensure() == kept, "nothing is compiled again"
    assert not made.exists()


@compiles
def test_the_cache_keeps_the_libraries_of_some_checkouts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "KEPT_IN_CACHE", 2)
    names = list[str]()
    for number in range(1, 4):
        write_program(number)
        names.append(ensure().name)
    cache = root / "cache" / "ryzanstein"
    assert {path.name for path in cache.glob("*.so")} == set(names[1:])
    assert {path.name for path in (root / "native" / "build").glob("*.so")} == {names[2]}


@compiles
def test_a_cache_that_cannot_be_written_is_done_without(root: Path) -> None:
    (root / "cache").touch()
    assert answer_of(ensure()) == 1
