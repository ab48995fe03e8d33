"""Compiles the C files of mypyc into one library and a small file for each module, in a few runs.

mypyc writes a C file for each module, which includes the declarations of all modules, and another one with
its entry, which includes those of Python. Declarations take the C compiler longer than the code of most
modules, so many files are compiled as one.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from shared.compiled_modules import SUFFIX

_PARTS = 8  # of the library; a few for each core, so that none is idle for long


def make_library(extensions: Sequence[Any], into: Path) -> None:
    """Makes the library and the files of all modules.

    Args:
        extensions: What `mypycify` returns: the library, and the entries of modules.
        into: A directory; the files get into its `lib`, as `package/module.SUFFIX`.
    """
    (library,) = [one for one in extensions if one.name.endswith("__mypyc")]
    entries = [one for one in extensions if one is not library]
    joined = into / "joined"
    joined.mkdir()
    library.sources = _in_parts(library.sources, joined)
    groups = _without_namesakes(entries)
    shared = [_joined_entries(group, joined / f"entries{number}.c") for number, group in enumerate(groups)]
    command = _SideBySide(Distribution({"name": library.name, "ext_modules": [library, *shared]}))
    command.build_lib, command.build_temp = str(into / "lib"), str(into / "objects")
    command.ensure_finalized()
    command.run()
    for group, made in zip(groups, shared, strict=True):
        file = into / "lib" / f"{made.name}{SUFFIX}"
        for entry in group:
            path = into / "lib" / f"{entry.name.replace('.', '/')}{SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(file)
        file.unlink()


def _in_parts(sources: Iterable[str], folder: Path) -> list[str]:
    """Writes files of about equal sizes that include all of these."""
    parts: list[list[str]] = [[] for _ in range(_PARTS)]
    sizes = [0] * _PARTS
    for source in sources:
        smallest = sizes.index(min(sizes))
        parts[smallest].append(source)
        sizes[smallest] += Path(source).stat().st_size
    files = []
    for number, part in enumerate(parts):
        if part:
            files.append(folder / f"part{number}.c")
            files[-1].write_text("".join(f'#include "{source}"\n' for source in part))
    return [str(file) for file in files]


def _without_namesakes(entries: Iterable[Any]) -> list[list[Any]]:
    """Groups in which no two modules have one name, since Python finds an entry by the name of its module."""
    groups: list[dict[str, Any]] = []
    for entry in entries:
        name = entry.name.rpartition(".")[2]
        group = next((one for one in groups if name not in one), None)
        if group is None:
            groups.append(group := {})
        group[name] = entry
    return [list(group.values()) for group in groups]


def _joined_entries(entries: Sequence[Any], file: Path) -> Any:
    """Writes a file that includes the entries of modules; returns its extension."""
    lines = []
    for number, entry in enumerate(entries):
        (source,) = entry.sources
        # each has this function as well
        lines.append(
            f'#define PyInit___init__ unused_init{number}\n#include "{source}"\n#undef PyInit___init__\n'
        )
    file.write_text("".join(lines))
    joined = copy(entries[0])
    joined.name, joined.sources = file.stem, [str(file)]
    return joined


class _SideBySide(build_ext):  # type: ignore[misc] # setuptools has no types
    """Compiles the files of an extension on all cores, and the extensions, too."""

    def build_extensions(self) -> None:
        """See `build_ext`."""
        self.parallel = os.cpu_count()
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            largest_first = sorted(sources, key=lambda source: -Path(source).stat().st_size)
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                objects = threads.map(lambda source: one_by_one([source], **options), largest_first)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_all
        super().build_extensions()
