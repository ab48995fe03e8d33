"""Keeps a process and its memory on one NUMA node: which one is decided purely, and Linux is asked for it.

Memory is *preferred* on the node: where that is full, the kernel takes another one, which is slower than a
local one and better than an end for want of memory.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

_PREFERRED = 1  # MPOL_PREFERRED of <linux/mempolicy.h>
_NUMBERS = {"x86_64": (238, 239), "aarch64": (237, 236)}  # of the calls set_mempolicy and get_mempolicy
_MAX_NODES = 1024
_WORD_BITS = 64


class NodePlace(NamedTuple):
    """Where a process runs.

    Attributes:
        node: The node of its memory; -1: the system decides.
        cores: Its cores; empty: they stay as they are.
    """

    node: int = -1
    cores: tuple[int, ...] = ()


ANYWHERE = NodePlace()


def rank_place(
    nodes: Mapping[int, tuple[int, ...]], num_nodes: int, index: int, ranks: int, threads: int
) -> NodePlace:
    """Returns where a rank of a group runs.

    A group that the supervisor keeps on one node has its memory there. The ranks of a wider one are spread
    over its nodes, neighbours together, each on one node, if their threads fit.

    Args:
        nodes: Cores that the process may use, by node.
        num_nodes: Nodes of the machine.
        index: Which of the ranks of this host it is.
        ranks: How many these are.
        threads: Threads of each.
    """
    if num_nodes < 2 or not nodes:
        return ANYWHERE
    if len(nodes) == 1:
        return NodePlace(next(iter(nodes)))
    numbers = sorted(nodes)
    chosen = [numbers[one * len(numbers) // max(ranks, 1)] for one in range(ranks)]
    if any(chosen.count(node) * threads > len(nodes[node]) for node in set(chosen)):
        return ANYWHERE
    node = chosen[index]
    return NodePlace(node, nodes[node])


def take_place(
    place: NodePlace,
    bind: Callable[[tuple[int, ...]], None] | None = None,
    prefer: Callable[[int], None] | None = None,
) -> NodePlace:
    """Moves this process to its cores and has its memory come from its node; before it has threads.

    Args:
        bind: Takes the cores, for tests; None: `sched_setaffinity`.
        prefer: Takes the node, for tests; None: `prefer_node`.

    Returns:
        What the kernel granted: nothing where it forbids it, as containers may.
    """
    try:
        if place.cores:
            (bind or _bind)(place.cores)
        if place.node >= 0:
            (prefer or prefer_node)(place.node)
    except OSError:
        return ANYWHERE
    return place


def prefer_node(node: int) -> None:
    """Has new memory of this process come from a node while it has some.

    Raises:
        OSError: The kernel refuses it.
    """
    mask = (ctypes.c_ulong * (_MAX_NODES // _WORD_BITS))()
    mask[node // _WORD_BITS] = 1 << (node % _WORD_BITS)
    _call(0, ctypes.c_int(_PREFERRED), mask, ctypes.c_ulong(_MAX_NODES))


def preferred_node() -> int:
    """Returns the node that `prefer_node` has set; -1: none.

    Raises:
        OSError: The kernel does not tell.
    """
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (_MAX_NODES // _WORD_BITS))()
    _call(1, ctypes.byref(mode), mask, ctypes.c_ulong(_MAX_NODES), None, ctypes.c_ulong(0))
    if mode.value != _PREFERRED:
        return -1
    return next(
        (
            index * _WORD_BITS + bit
            for index, word in enumerate(mask)
            for bit in range(_WORD_BITS)
            if word >> bit & 1
        ),
        -1,
    )


def _bind(cores: tuple[int, ...]) -> None:
    os.sched_setaffinity(0, cores)


def _call(which: int, *arguments: object) -> None:
    numbers = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        raise OSError("this system has no such call")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(numbers[which]), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
