"""Parallel processes import all modules of tests, each in an order of its own."""

from pathlib import Path

import pytest

from tests.kits.parallel.import_order import import_tests, modules_of_tests, part_first

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
def test_each_process_begins_with_another_part_and_imports_all(count: int) -> None:
    names = [str(one) for one in range(count)]
    orders = [part_first(names, part, 4) for part in range(4)]
    assert all(sorted(order) == names for order in orders)
    if count >= 4:
        assert len({order[0] for order in orders}) == 4


def test_this_module_is_among_them() -> None:
    assert __name__ in modules_of_tests(ROOT)


def test_a_module_that_cannot_be_imported_is_left_to_the_collection() -> None:
    import_tests(["tests.no_such_module", __name__])
