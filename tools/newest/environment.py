"""An environment in `build/newest` that has newer libraries and, behind them, all that `.venv` has.

So torch and the rest are not installed again, and `.venv` stays as it is.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from tools.newest.outcome import SHOWN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "newest"
PYTHON = FOLDER / "bin" / "python"
_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def make_environment() -> None:
    """Makes it anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    parts = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # `addsitedir` reads the .pth files there as well, which name this checkout
    behind = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (FOLDER / "lib" / parts / "site-packages" / "behind.pth").write_text(behind)


def install(requirements: Iterable[str]) -> None:
    """Installs the newest versions that these requirements allow, without the project's own bounds.

    Raises:
        CalledProcessError: pip cannot install them.
    """
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
    ]
    subprocess.run([*command, *requirements], check=True)


def versions(python: Path, libraries: Iterable[str]) -> dict[str, str]:
    """Returns the versions that an interpreter finds."""
    done = subprocess.run([python, "-c", _VERSIONS, *libraries], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run_tests(tests: Iterable[str], report: Path) -> int:
    """Runs tests there until `SHOWN` have failed; returns how pytest ended.

    Servers come from the folder of this Python. A version that breaks the bus makes each test wait for it.
    """
    beside = str(Path(sys.executable).parent)
    environ = {**os.environ, "PATH": os.pathsep.join((beside, os.environ.get("PATH", "")))}
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    return subprocess.run(
        [*command, f"--maxfail={SHOWN}", f"--junitxml={report}", *tests], cwd=ROOT, env=environ, check=False
    ).returncode
