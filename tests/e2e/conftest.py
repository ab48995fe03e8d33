"""Whole stacks for tests, each started once: one that computes the demo model, one with the null engine."""

from collections.abc import Iterator

import pytest

from tests.e2e.kit import Stack


@pytest.fixture(scope="session")
def null_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups that answer without a model."""
    with Stack(tmp_path_factory.mktemp("null-stack"), "--engine", "null") as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@pytest.fixture(scope="session")
def torch_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups of two ranks that compute the demo model."""
    with Stack(tmp_path_factory.mktemp("torch-stack")) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
