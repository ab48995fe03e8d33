"""Fixtures of tests of several parts."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a random model of the smallest shape of `ryz bench`, which no test changes."""
    from benchmarks.models.make_model import make_model  # noqa: PLC0415 (loads torch)
    from benchmarks.models.shapes import SHAPES  # noqa: PLC0415 (as well)

    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_model(directory, SHAPES["tiny"])
    return directory
