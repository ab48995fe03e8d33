"""Our processes import our code, and no modules from the working directory."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from shared.host.own_python import module_command, module_environment
from tests.kits.servers import ROOT

PLANTED = 'import sys\nprint("planted", flush=True)\nsys.exit(9)\n'


def run(folder: Path, environ: dict[str, str], module: str = "shared.bus.nats_conf") -> str:
    done = subprocess.run(
        [*module_command(module), "nonsense"], cwd=folder, env=module_environment(environ), text=True,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("paths", ["", ":", "::/nowhere"])
def test_a_package_in_the_working_directory_is_not_imported(tmp_path: Path, paths: str) -> None:
    for name in ("shared", "services", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(PLANTED)
    said = run(tmp_path, {**os.environ, "PYTHONPATH": paths})
    assert "planted" not in said
    assert "usage: " in said, "ours is found without PYTHONPATH and away from the checkout"


def test_processes_that_it_starts_are_bound_to_it_too(tmp_path: Path) -> None:
    environment = module_environment({"PYTHONPATH": "/one"})
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/one"
    assert module_environment(environment) == environment


def test_installed_packages_do_not_go_before_the_standard_library(tmp_path: Path) -> None:
    assert module_environment({}, tmp_path / "site-packages")["PYTHONPATH"] == ""


def test_nothing_of_ours_is_started_with_the_working_directory_on_the_path() -> None:
    """Every command in the sources has `-P` before `-m`."""
    bare = re.compile(r"""(?<!-P", )["']-m["'](?!, help)""")
    for package in ("cli", "services", "shared", "benchmarks", "deploy"):
        for file in (ROOT / package).rglob("*.py"):
            found = [line for line in file.read_text().splitlines() if bare.search(line)]
            assert [line for line in found if "--messages" not in line] == [], file
