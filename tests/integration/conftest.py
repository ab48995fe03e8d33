"""Fixtures of the integration tests of all services."""

from collections.abc import Iterator

import pytest

from tests.kits.engine.shared_fork_server import sharing


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    """Engines take their ranks from one fork server; override it where a test is about the server."""
    with sharing():
        yield
