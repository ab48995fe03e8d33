"""Bills of materials (CycloneDX): of what the wheel installs, with the versions that the tests ran with."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

from tools.release.checks import NoRelease

EXTRA = "all"


def pinned_closure(root: Path, extra: str = EXTRA) -> list[str]:
    """Return `name==version` of each distribution that the project and one of its extras install.

    Follows what this environment has of each, and takes the versions of constraints.txt.

    Raises:
        NoRelease: One of them has no pin.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pins = dict(
        line.split("==", 1)
        for line in (root / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    pins = {_normal(name): version.split(";")[0].strip() for name, version in pins.items()}
    own = [f"{project['name']}[{extra}]"]
    found, waiting = set[tuple[str, frozenset[str]]](), [Requirement(line) for line in own]
    while waiting:
        wanted = waiting.pop()
        key = (_normal(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        found.add(key)
        waiting += [one for line in _lines(wanted, project) if (one := _taken(line, wanted.extras))]
    names = sorted({name for name, _ in found} - {_normal(project["name"])})
    if missing := [name for name in names if name not in pins]:
        raise NoRelease(f"constraints.txt has no version of {', '.join(missing)}")
    return [f"{name}=={pins[name]}" for name in names]


def _lines(wanted: Requirement, project: dict[str, object]) -> list[str]:
    if _normal(wanted.name) == _normal(str(project["name"])):
        extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
        return [*project["dependencies"], *(line for one in wanted.extras for line in extras[one])]  # type: ignore[misc]
    try:
        return requires(wanted.name) or []
    except PackageNotFoundError:  # for another platform
        return []


def _taken(line: str, extras: set[str]) -> Requirement | None:
    found = Requirement(line)
    holds = found.marker is None or any(found.marker.evaluate({"extra": one}) for one in [*extras, ""])
    return found if holds else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write_bill(root: Path, target: Path) -> None:
    """Write the bill of the wheel with the extra `all`."""
    lines = target.with_suffix(".txt")
    lines.write_text("".join(f"{line}\n" for line in pinned_closure(root)))
    command = [
        sys.executable, "-P", "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--pyproject",
        str(root / "pyproject.toml"), "--of", "JSON", "-o", str(target), str(lines),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines.unlink()
    if done.returncode:
        raise NoRelease(f"the bill of materials was not written: {done.stderr.strip()}")
