"""The NUMA nodes of this machine, with the cores that this process may use."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def usable_nodes(directory: Path = _NODES) -> list[tuple[int, ...]]:
    """Return the cores of each node that has any; those of one node if the system names none."""
    usable = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set[int]()
    return list(numbered_nodes(directory).values()) or [tuple(sorted(usable))]


def numbered_nodes(directory: Path = _NODES) -> dict[int, tuple[int, ...]]:
    """Return the cores that this process may use of each node that has any, by the node's number."""
    usable = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set[int]()
    nodes = dict[int, tuple[int, ...]]()
    for path in sorted(directory.glob("node[0-9]*/cpulist")):
        cores = tuple(sorted(usable & set(_listed(path.read_text(encoding="ascii")))))
        if cores:
            nodes[int(path.parent.name.removeprefix("node"))] = cores
    return nodes


def count_nodes(directory: Path = _NODES) -> int:
    """Return how many nodes with cores the machine has, usable or not."""
    return sum(
        bool(path.read_text(encoding="ascii").strip()) for path in directory.glob("node[0-9]*/cpulist")
    )


def _listed(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as `0-3,8`."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)
