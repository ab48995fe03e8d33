"""Imports what parallel processes of tests need: shared before a fork, or in another order in each.

pytest rewrites a module when it is imported first, and keeps the result on disk. In a fresh checkout,
processes that collect in the same order each rewrite everything. Here each begins with a part of its own,
and finds the others rewritten.
"""

import gc
import importlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest


def part_first(names: Sequence[str], part: int, parts: int) -> list[str]:
    """Returns all names in their order, but beginning with one of several equal parts."""
    begin = len(names) * part // parts
    return [*names[begin:], *names[:begin]]


def modules_of_tests(root: Path) -> list[str]:
    """Returns the names of all modules of tests below the folder of the package `tests`."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in files]


def import_tests(names: Sequence[str]) -> None:
    """Import modules; what cannot be imported is left to the collection, which says why."""
    gc.disable()  # modules stay, and there are millions of objects to look through
    try:
        for name in names:
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)
    finally:
        gc.enable()


def import_for_forks(nodeids: Iterable[str]) -> None:
    """Import transformers, which takes seconds, if several of the forked processes will need it."""
    if any(nodeid.startswith("tests/unit/engine/families/") for nodeid in nodeids):
        importlib.import_module("transformers.models.llama.modeling_llama")
        importlib.import_module("transformers.models.auto.modeling_auto")
