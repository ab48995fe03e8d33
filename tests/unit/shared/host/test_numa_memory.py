"""NUMA nodes: where ranks and their memory go on machines with several, and what the kernel is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.host.numa_memory import ANYWHERE, NodePlace, rank_place, take_place
from shared.host.numa_nodes import count_nodes, numbered_nodes

FOUR = {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (6, 7)}
# what `take_place` asks of a kernel whose one node is 0; in a process of its own, which keeps it
ASKS = """
import os
from shared.host.numa_memory import NodePlace, preferred_node, take_place
assert preferred_node() == -1
core = min(os.sched_getaffinity(0))
print(take_place(NodePlace(0, (core,))).node, preferred_node(), len(os.sched_getaffinity(0)))
"""


def test_a_machine_of_one_node_asks_for_nothing() -> None:
    assert rank_place({0: (0, 1)}, 1, 0, 2, 1) == ANYWHERE
    assert rank_place({}, 0, 0, 1, 1) == ANYWHERE
    asked: list[object] = []
    assert take_place(ANYWHERE, asked.append, asked.append) == ANYWHERE
    assert asked == []


def test_a_group_that_stays_on_one_node_has_its_memory_there() -> None:
    assert rank_place({1: (4, 5)}, 2, 0, 2, 1) == NodePlace(1)
    asked: list[object] = []
    assert take_place(NodePlace(1), asked.append, asked.append) == NodePlace(1)
    assert asked == [1]  # its cores are those of the node already


@pytest.mark.parametrize(
    ("ranks", "threads", "nodes"),
    [
        (4, 2, [0, 1, 2, 3]),
        (8, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        (2, 2, [0, 2]),
        (4, 1, [0, 1, 2, 3]),
        (3, 1, [0, 1, 2]),
        (4, 3, [-1] * 4),  # a rank has more threads than a node has cores
        (16, 1, [-1] * 16),
    ],
)
def test_ranks_of_a_wide_group_are_spread_over_the_nodes(ranks: int, threads: int, nodes: list[int]) -> None:
    places = [rank_place(FOUR, 4, rank, ranks, threads) for rank in range(ranks)]
    assert [place.node for place in places] == nodes
    assert all(place.cores == FOUR.get(place.node, ()) for place in places)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(1, 12), st.integers(1, 4))
def test_no_node_gets_more_threads_than_it_has_cores(sizes: list[int], ranks: int, threads: int) -> None:
    nodes = {node: tuple(range(100 * node, 100 * node + size)) for node, size in enumerate(sizes)}
    places = [rank_place(nodes, len(nodes), rank, ranks, threads) for rank in range(ranks)]
    for node, cores in nodes.items():
        assert sum(place.node == node for place in places) * threads <= len(cores)
    assert len({place.node == -1 for place in places}) == 1  # all of a group, or none


def test_cores_come_before_memory_and_a_refusal_leaves_the_rank_where_it_is() -> None:
    asked: list[object] = []
    place = NodePlace(2, (4, 5))
    assert take_place(place, asked.append, asked.append) == place
    assert asked == [(4, 5), 2]

    def refuse(_: object) -> None:
        raise OSError(1, "Operation not permitted")

    assert take_place(place, asked.append, refuse) == ANYWHERE
    assert take_place(place, refuse, asked.append) == ANYWHERE


@pytest.mark.skipif(sys.platform != "linux", reason="the calls are Linux's")
def test_the_kernel_is_asked_for_cores_and_memory_of_a_node() -> None:
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", ASKS],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this container forbids set_mempolicy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "1"]


def test_nodes_are_read_with_their_numbers(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    for node, cores in ((0, "9000-9001"), (2, f"{first},9002"), (3, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores + "\n", encoding="ascii")
    assert numbered_nodes(tmp_path) == {2: (first,)}
    assert count_nodes(tmp_path) == 2  # a node without cores has memory only
