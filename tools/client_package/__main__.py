"""Builds the sdist and the wheel of `ryzanstein-client`: `python -m tools.client_package [FOLDER]`.

Each build takes the modules from `shared/` anew, so there is no copy of them in the repository.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tools.client_package.module_closure import SOURCE, ModuleClosure, find_closure
from tools.client_package.rewriting import LOGS, PACKAGE, rewrite_imports

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
# what the modules may import, and the distribution that has it
ALLOWED: Mapping[str, str] = {
    "annotated_types": "annotated-types",
    "msgpack": "msgpack",
    "msgspec": "msgspec",
    "nats": "nats-py",
    "opentelemetry": "opentelemetry-api",
    "pydantic": "pydantic",
    "pydantic_settings": "pydantic-settings",
}
REPLACED = {"structlog"}  # by `standard_logs.py`
_BACKEND = """
import sys
from setuptools import build_meta
target = sys.argv[1]  # the backend changes the arguments
build_meta.build_sdist(target)
build_meta.build_wheel(target)
"""


class ForbiddenImport(Exception):
    """A module that the client needs imports what a client must not bring along."""


def checked_closure(root: Path = ROOT) -> ModuleClosure:
    """Returns the modules of the client.

    Raises:
        ForbiddenImport: One of them imports another package than `ALLOWED` names.
    """
    closure = find_closure(root, HERE / "public.py")
    for package, importers in sorted(closure.outside.items()):
        if package not in ALLOWED and package not in REPLACED:
            raise ForbiddenImport(
                f"the client would need {package!r}, which {', '.join(sorted(importers))} import: import "
                "it elsewhere, or add it to ALLOWED in tools/client_package"
            )
    return closure


def write_tree(folder: Path, root: Path = ROOT) -> None:
    """Writes the source tree of the distribution: the package, `pyproject.toml`, a README."""
    closure = checked_closure(root)
    package = folder / PACKAGE
    for name, path in closure.files.items():
        directory = package.joinpath(*path.relative_to(root / SOURCE).parts)
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.write_text(rewrite_imports(path.read_text(), name))
    (package / "__init__.py").write_text(rewrite_imports((HERE / "public.py").read_text(), "public"))
    shutil.copy(HERE / f"{LOGS}.py", package / f"{LOGS}.py")
    (package / "py.typed").touch()
    shutil.copy(HERE / "README.md", folder / "README.md")
    (folder / "pyproject.toml").write_text(project_file(root, closure))


def project_file(root: Path, closure: ModuleClosure) -> str:
    """Returns the distribution's `pyproject.toml`, with version and bounds of this repository's."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    bounds = {one.partition(">=")[0]: one for one in project["dependencies"]}
    bounds["opentelemetry-api"] = bounds["opentelemetry-sdk"].replace("-sdk", "-api")
    needed = sorted(bounds[ALLOWED[name]] for name in closure.outside if name in ALLOWED)
    listed = ", ".join(f'"{one}"' for one in needed)
    return f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "ryzanstein-client"
version = "{project["version"]}"
description = "Client for Ryzanstein: text generation by large language models over NATS."
readme = "README.md"
requires-python = "{project["requires-python"]}"
dependencies = [{listed}]
classifiers = ["Typing :: Typed"]

[tool.setuptools.packages.find]
include = ["{PACKAGE}*"]

[tool.setuptools.package-data]
{PACKAGE} = ["py.typed"]
"""


def build(target: Path) -> list[Path]:
    """Builds both into a folder; returns the files."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made)
        write_tree(tree)
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, "-c", _BACKEND, str(target.resolve())],
            cwd=tree, env=inherited, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"setuptools could not build it:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return sorted(target.glob("ryzanstein_client-*"))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Builds sdist and wheel of ryzanstein-client.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    try:
        for path in build(parser.parse_args().folder):
            print(path)
    except (ForbiddenImport, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
