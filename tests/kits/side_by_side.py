"""Distributes tests over parallel processes and orders them.

All tests of a file run in one process, so that module fixtures are made once. Files that use the same package
stack run in one process, too. Files with whole stacks run first because they take longest.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

FOLDERS = ("e2e", "chaos", "integration", "contract", "unit")
SHARED_STACKS = {
    "tests/e2e/conftest.py": ("conversation", "cutoffs", "garbage", "sessions", "story"),
    "tests/chaos/conftest.py::pair": ("broker", "failover", "failover_http", "rolling_restart"),
    "tests/chaos/conftest.py::chaos": ("kv_tier", "redis_and_group"),
}
_STACK_OF = {
    f"{stack.partition('/conftest.py')[0]}/test_{name}.py": stack
    for stack, names in SHARED_STACKS.items()
    for name in names
}


def sort_for_many_processes(items: list[pytest.Item]) -> None:
    """Sort tests by the order of `FOLDERS`; files that share a stack come first."""

    def rank(item: pytest.Item) -> tuple[int, str]:
        file = item.nodeid.partition("::")[0]
        folder = file.split("/")[1]
        place = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
        return (place if file not in _STACK_OF else -1), _STACK_OF.get(file, "")

    items.sort(key=rank)


class StackScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process one file after another, or all files that share a stack."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _STACK_OF.get(file, file)
