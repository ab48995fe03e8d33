"""A stack of processes that the tests of responses share; each leaves it as it found it."""

from collections.abc import Iterator

import pytest

from tests.kits.stacks.turn_stack import TurnsFleet

LEASE_S = 0.5  # of a response in the background


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnsFleet]:
    """Two groups of the null engine, two gateways, kvstate and its Redis."""
    folder = tmp_path_factory.mktemp("responses")
    lease = str(LEASE_S)
    with TurnsFleet(folder, response_lease_s=lease, null_step_delay_ms="10", retention_s="60") as fleet:
        yield fleet
