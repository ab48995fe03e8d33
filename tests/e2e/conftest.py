"""Whole stacks for tests, each started once: null engine, demo model, and demo model with 8-bit weights.

They are stopped after this folder's last test, because idle stacks use a part of two cores.
"""

from collections.abc import Iterator

import pytest

from services.worker.engine.native.build import NoKernels
from services.worker.engine.native.library import kernels
from tests.kits.e2e.stack import Stack


@pytest.fixture(scope="package")
def null_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups that answer without a model."""
    with Stack(tmp_path_factory.mktemp("null-stack"), "--engine", "null", "--routers", "2") as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@pytest.fixture(scope="module")
def int8_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One group of two ranks that compute the demo model with 8-bit weights and a half-precision KV cache."""
    try:
        kernels()
    except NoKernels as error:
        pytest.skip(f"no compiled kernels here: {error}")
    options = ("--groups", "1", "--precision", "int8")
    with Stack(tmp_path_factory.mktemp("int8-stack"), *options) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@pytest.fixture(scope="package")
def torch_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups of two ranks that compute the demo model."""
    with Stack(tmp_path_factory.mktemp("torch-stack"), "--routers", "2") as stack:
        yield stack.await_ready()
        assert stack.end() == 0
