"""Puts Debian's `prometheus` and `promtool` into `.venv/bin`: `python -m tools.debian.prometheus`.

Tests evaluate alerts and boards with them. They come from the distribution's package `prometheus`, which
apt-get fetches and dpkg-deb unpacks in a temporary folder: that needs no root and starts no service. Where
there is no apt-get, or no network, nothing is installed; tests that need the programs are skipped.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")
_TIMEOUT_S = 120.0
_PATIENCE = (
    "-o",
    "Acquire::Retries=1",
    "-o",
    "Acquire::http::Timeout=15",
    "-o",
    "Acquire::https::Timeout=15",
)


class NotFetched(Exception):
    """The package could not be fetched or unpacked."""


def missing(bin_folder: Path) -> list[str]:
    """Return the programs that are neither in the folder nor on PATH."""
    return [name for name in PROGRAMS if not (bin_folder / name).exists() and shutil.which(name) is None]


def fetch(bin_folder: Path) -> None:
    """Fetch the package and copy its programs into a folder.

    Raises:
        NotFetched: A command failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apt = [*_apt_get(folder), *_PATIENCE]
        _run([*apt, "update"], folder)
        _run([*apt, "download", PACKAGE], folder)
        found = sorted(folder.glob(f"{PACKAGE}_*.deb"))
        if not found:
            raise NotFetched(f"apt-get download {PACKAGE} left no package")
        _run(["dpkg-deb", "-x", str(found[-1]), str(folder / "unpacked")], folder)
        for program in PROGRAMS:
            shutil.copy2(folder / "unpacked" / "usr" / "bin" / program, bin_folder / program)


def _apt_get(folder: Path) -> list[str]:
    """Return apt-get with lists and caches of its own, so that it needs no root."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    own = {"Dir::State::lists": folder / "lists", "Dir::Cache": folder / "cache"}
    if os.geteuid() == 0:
        own["APT::Sandbox::User"] = Path("root")  # the user _apt may not write there
    return ["apt-get", "-q", *(part for key, value in own.items() for part in ("-o", f"{key}={value}"))]


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFetched(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotFetched(f"{command[0]} failed: {lines[-1]}")


def main() -> int:
    """Fetch what is missing; 1 if that failed and a later try may succeed."""
    bin_folder = Path(sys.executable).parent
    if not missing(bin_folder):
        return 0
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print(
            "No apt-get here: tests of alerts and boards are skipped. Put Prometheus (2.42 or newer) on PATH."
        )
        return 0
    try:
        fetch(bin_folder)
    except NotFetched as error:
        print(f"Prometheus was not fetched ({error}): tests of alerts and boards are skipped.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
