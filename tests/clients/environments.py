"""Environments that have one client library each, since their requirements disagree; kept in `build`."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "clients"
SCRIPTS = Path(__file__).with_name("scripts")
_INSTALL_S = 1800.0


@dataclass(frozen=True, slots=True)
class OutsideClient:
    """A client library.

    Attributes:
        script: The name of the program in `scripts` that uses it.
        requirements: Packages with their versions, of PyPI or for a script in JavaScript of npm.
        cannot: Cases that fail, and why.
        recipe: The page whose program it runs, too.
        python: Version of the interpreter that it needs, such as `3.13`; empty: that of the tests.
    """

    script: str
    requirements: tuple[str, ...]
    cannot: tuple[tuple[str, str], ...] = ()
    recipe: str = ""
    python: str = ""

    @property
    def about(self) -> str:
        """What is tried, as the script says in its first line."""
        first = (SCRIPTS / self.script).read_text().partition("\n")[0]
        return first.strip('"/ ').partition(": ")[2]

    @property
    def folder(self) -> Path:
        """Where its environment is."""
        return FOLDER / Path(self.script).stem

    def install(self) -> None:
        """Makes the environment, unless it is there for the same requirements."""
        by_npm = self.script.endswith(".mjs")
        install(self.folder, self.requirements, by_npm=by_npm, python=interpreter(self.python))

    def command(self, url: str, model: str) -> list[str]:
        """The command that runs its cases against a gateway."""
        if self.script.endswith(".mjs"):  # packages are looked up beside the script
            shutil.copy(SCRIPTS / self.script, self.folder)
            return ["node", str(self.folder / self.script), url, model]
        return [str(self.folder / "bin" / "python"), str(SCRIPTS / self.script), url, model]


@dataclass(frozen=True, slots=True)
class OutsideProgram:
    """A program of npm that users run.

    Attributes:
        name: Of the program.
        requirements: Packages with their versions.
        about: What is tried.
        recipe: The page whose commands it runs.
    """

    name: str
    requirements: tuple[str, ...]
    about: str
    recipe: str

    def install(self) -> Path:
        """Makes the environment, unless it is there for the same requirements; returns where programs are."""
        folder = FOLDER / self.name
        install(folder, self.requirements, by_npm=True)
        return folder / "node_modules" / ".bin"


def interpreter(version: str) -> str:
    """Returns an interpreter of that version, or that of the tests; skips the test if there is none."""
    if not version:
        return sys.executable
    name = f"python{version}"
    try:  # it says where it is: pyenv's command of that name needs a variable
        says = [name, "-c", "import sys; print(sys.executable)"]
        env = {**os.environ, "PYENV_VERSION": version}
        return subprocess.run(says, env=env, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs {name}, which is not here")


def install(
    folder: Path, requirements: tuple[str, ...], *, by_npm: bool, python: str = sys.executable
) -> None:
    """Makes an environment, unless it is there for the same requirements.

    Args:
        requirements: Packages with their versions, of npm or of PyPI.
        python: The interpreter of an environment with packages of PyPI.
    """
    stamp, wanted = folder / "installed", "\n".join(requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if by_npm:
        (folder / "package.json").write_text("{}")
        _call(folder, "npm", "install", "--no-audit", "--no-fund", *requirements)
    else:
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
        _call(folder, python, "-m", "venv", ".")
        _call(folder, *pip, "install", "--quiet", "--no-compile", *requirements)  # few are imported
    stamp.write_text(wanted)


def _call(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, env=os.environ, check=True, timeout=_INSTALL_S)
