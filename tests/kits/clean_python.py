"""Environments of Python that have a wheel and what it declares to need, and nothing else.

They are made without a network, of the packages that are installed here.
"""

import re
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Installs a wheel of plain Python into a folder of packages, as installers do."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def link_needed(wheel: Path, site: Path) -> set[str]:
    """Links what the wheel needs, directly or not, from this environment; returns the names."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith("/METADATA"))
        text = archive.read(name).decode()
    waiting = [Requirement(one) for one in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)]
    linked: set[str] = set()
    while waiting:
        needed = waiting.pop()
        marker: Any = needed.marker
        if needed.name in linked or (marker is not None and not marker.evaluate({"extra": ""})):
            continue
        linked.add(needed.name)
        found = distribution(needed.name)
        _link(found, site)
        waiting += [Requirement(one) for one in found.requires or ()]
    return linked


def _link(found: Distribution, site: Path) -> None:
    """Links its packages, modules and metadata; packages that several share are merged."""
    for file in found.files or ():
        if file.parts[0] == ".." or "__pycache__" in file.parts:
            continue
        path = site.joinpath(*file.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.symlink_to(Path(str(found.locate_file(file))))


@dataclass(frozen=True, slots=True)
class CleanPython:
    """A virtual environment; `needed` are the distributions that the wheel brings along."""

    python: Path
    site: Path
    needed: frozenset[str]


def clean_python(wheel: Path, folder: Path) -> CleanPython:
    """Makes a virtual environment with a wheel."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    unpack_wheel(wheel, site)
    return CleanPython(folder / "bin" / "python", site, frozenset(link_needed(wheel, site)))
