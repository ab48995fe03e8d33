"""CPU or waiting time of the longest test files, in seconds, measured on two cores.

The table only decides the order (`side_by_side.py`): the longest files begin first. Files that take less than five
seconds are left out.
"""

SECONDS = {
    "tests/e2e/test_up_down.py": 50,
}
