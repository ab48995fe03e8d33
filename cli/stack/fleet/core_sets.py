"""Decides on which cores the processes of a stack run: cores that models reserve, and NUMA nodes. Pure.

Without either every process may run on every core, and the system moves it to one that is free: ranks that
are bound to a core would wait there for a gateway's work beside a core that has none.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel
from cli.stack.sizing_text import count_words

Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CoreSets:
    """Where processes run; an empty set is every core.

    Attributes:
        groups: The cores of each group, in the order of the groups.
        others: Those of all other processes.
    """

    groups: tuple[Cores, ...] = ()
    others: Cores = ()

    def of_group(self, number: int) -> Cores:
        """The cores of a group; a group of a model that was added later has those that no group reserved."""
        return self.groups[number] if number < len(self.groups) else self.others


def num_reserved(models: Sequence[FoundModel]) -> int:
    """How many cores are reserved; a model that reserves some and says nothing of groups has one."""
    return sum(model.entry.cores * (model.entry.groups or 1) for model in models)


def with_reserved(models: Sequence[FoundModel], usable: int, declared: Declaration) -> tuple[FoundModel, ...]:
    """Settle groups and threads of models that reserve cores, and note where the cores are too few."""
    settled = list[FoundModel]()
    for declared_model in models:
        entry, model = declared_model.entry, declared_model
        ranks = entry.tensor_parallel or 1
        if entry.cores:
            threads = max(1, entry.threads or entry.cores // ranks)
            groups = entry.groups or max(1, entry.min_groups)
            model, problem = model.with_values(groups=groups, threads=threads), ""
            if sys.platform != "linux":
                problem = "this system reserves no cores: leave it out"
            elif threads * ranks > entry.cores:
                threads_words = count_words(threads * ranks, "thread")
                problem = f"the ranks of a group compute with {threads_words}: reserve as many"
            elif num_reserved([*settled, model]) >= usable:
                problem = f"of {count_words(usable, 'core')} one is for the other services: reserve fewer"
                if groups > 1:
                    problem += f"; these are for each of {count_words(groups, 'group')}"
            if problem:
                declared.add_entry_problem(model.number, "cores", problem)
        settled.append(model)
    return tuple(settled)


def assign_cores(models: Sequence[FoundModel], nodes: Sequence[Cores]) -> CoreSets:
    """Choose the cores of all groups.

    A group that reserves cores has them within one node if any node has so many left, and nothing else of the
    stack runs on them. Where there are several nodes, any other group whose ranks fit into one stays there.

    Args:
        models: With all that was left open; they leave at least one core.
        nodes: The cores of each NUMA node that this stack may use.
    """
    groups = [model.entry for model in models for _ in range(model.entry.groups)]
    left = [list(node) for node in nodes]
    chosen = list[Cores]()
    for entry in groups:
        chosen.append(_reserve(left, entry.cores) if entry.cores else ())
    others = tuple(sorted(core for node in left for core in node)) if any(chosen) else ()
    taken = [0] * len(left)
    for number, entry in enumerate(groups):
        if not entry.cores:
            wanted = entry.threads * entry.tensor_parallel
            chosen[number] = _within_node(left, taken, wanted) if len(nodes) > 1 else others
    return CoreSets(tuple(chosen), others)


def _reserve(left: list[list[int]], count: int) -> Cores:
    """Take so many cores, the last ones, of the fullest node, or of several where none has enough."""
    taken = list[int]()
    while len(taken) < count:
        node = max(left, key=len)
        number = min(count - len(taken), len(node))
        taken += node[-number:]
        del node[-number:]
    return tuple(sorted(taken))


def _within_node(left: Sequence[Sequence[int]], taken: list[int], wanted: int) -> Cores:
    """Return the cores of the node with the fewest threads a core; all cores if no node has enough."""
    roomy = [number for number, node in enumerate(left) if len(node) >= wanted]
    if not roomy:
        return tuple(sorted(core for node in left for core in node))
    best = min(roomy, key=lambda number: (taken[number] + wanted) / len(left[number]))
    taken[best] += wanted
    return tuple(left[best])


def describe_cores(models: Sequence[FoundModel], sets: CoreSets) -> Iterator[str]:
    """Yield a line for each group that has cores of its own or stays on a node."""
    names = [model.name for model in models for _ in range(model.entry.groups)]
    reserves = [model.entry.cores > 0 for model in models for _ in range(model.entry.groups)]
    for number, (name, own) in enumerate(zip(names, reserves, strict=True)):
        cores = ", ".join(map(str, sets.of_group(number)))
        if own:
            yield f"{name}: a group has cores of its own: {cores}."
        elif cores and sets.of_group(number) != sets.others:
            yield f"{name}: a group stays on one NUMA node: cores {cores}."
