"""Environments that have one client library each, since their requirements disagree; kept in `build`."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "clients"
SCRIPTS = Path(__file__).with_name("scripts")
_INSTALL_S = 1200.0


@dataclass(frozen=True, slots=True)
class OutsideClient:
    """A client library.

    Attributes:
        script: The name of the program in `scripts` that uses it.
        requirements: Packages with their versions, of PyPI or for a script in JavaScript of npm.
        cannot: Cases that fail, and why.
        recipe: The page whose program it runs, too.
    """

    script: str
    requirements: tuple[str, ...]
    cannot: tuple[tuple[str, str], ...] = ()
    recipe: str = ""

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
        stamp, wanted = self.folder / "installed", "\n".join(self.requirements)
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.script.endswith(".mjs"):
            (self.folder / "package.json").write_text("{}")
            self._call("npm", "install", "--no-audit", "--no-fund", *self.requirements)
        else:
            self._call(sys.executable, "-m", "venv", ".")
            self._call(*self._pip(), "install", "--quiet", *self.requirements)
        stamp.write_text(wanted)

    def command(self, url: str, model: str) -> list[str]:
        """The command that runs its cases against a gateway."""
        if self.script.endswith(".mjs"):  # packages are looked up beside the script
            shutil.copy(SCRIPTS / self.script, self.folder)
            return ["node", str(self.folder / self.script), url, model]
        return [str(self.folder / "bin" / "python"), str(SCRIPTS / self.script), url, model]

    def _pip(self) -> tuple[str, ...]:
        return str(self.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"

    def _call(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, env=os.environ, check=True, timeout=_INSTALL_S)
