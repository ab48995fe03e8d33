"""A fleet for the tests of turns; each uses sessions of its own and leaves the services running."""

from collections.abc import Iterator

import pytest

from tests.kits.stacks.turn_stack import TurnsFleet


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnsFleet]:
    with TurnsFleet(tmp_path_factory.mktemp("turns")) as fleet:
        yield fleet
