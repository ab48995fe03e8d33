"""Finds `prometheus` and `promtool`, which `make dev` fetches from Debian, and runs promtool."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_TIMEOUT_S = 240.0  # ends one that hangs, before the test's own limit; hours of series take seconds


def find_program(name: str) -> str:
    """Return the path of a program; skips the test where it is not installed."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(
            f"no {name} beside {sys.executable} or on PATH: `make dev` fetches it where there is apt-get, "
            "elsewhere install Prometheus 2.42 or newer"
        )
    return found


def promtool(*arguments: str | Path) -> str:
    """Run promtool and return what it printed.

    Raises:
        AssertionError: It failed; the message has its output.
    """
    command = [find_program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout
