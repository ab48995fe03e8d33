"""Runs pip in a process of its own to fetch a wheel, and watches how far it is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cli.console import fail
from cli.models import pip_fetch
from cli.models.catalogue import CatalogueWheel
from cli.models.model_store import size_of
from shared.host.own_python import module_command

STALL_S = 45.0  # without a byte, a connection counts as broken off
_LARGEST_MESSAGE = 2000


def fetch_once(wheel: CatalogueWheel, path: Path, lock: int, reach: Callable[[int], None]) -> tuple[int, str]:
    """Run `pip_fetch.py`; return its exit code and its reason."""
    script = Path(pip_fetch.__file__)
    command = [sys.executable, "-P", str(script), wheel.project, wheel.version, str(path), str(wheel.size)]
    code, text = _run(command, path.parent, lock, lambda: size_of(path), reach)
    try:
        return code, json.loads(text) if code else ""
    except ValueError:
        return pip_fetch.NOT_THIS_PIP, text


def download_whole(wheel: CatalogueWheel, path: Path, lock: int, reach: Callable[[int], None]) -> None:
    """Run `pip download`, which begins at the first byte."""
    folder = path.parent / "pip"
    folder.mkdir(exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command = [
        *module_command("pip"),
        "download",
        *options,
        "-d",
        str(folder),
        f"{wheel.project}=={wheel.version}",
    ]
    code, text = _run(command, path.parent, lock, lambda: size_of(folder), reach, TMPDIR=str(folder))
    found = sorted(folder.glob("*.whl"))
    if code or not found:
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it gave no reason"]
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        if "No module named pip" in text:
            said = f"this environment has no pip (`{sys.executable} -m ensurepip` brings it)"
        fail(f"pip could not fetch {wheel.project}=={wheel.version}: {said}")
    found[-1].replace(path)


def _run(
    command: list[str],
    folder: Path,
    lock: int,
    size: Callable[[], int],
    reach: Callable[[int], None],
    **environment: str,
) -> tuple[int, str]:
    """Run a command that fetches, and show its progress; end it when no byte comes for `STALL_S`."""
    with (folder / "messages").open("w+") as messages:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=subprocess.STDOUT, pass_fds=(lock,),
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment,
        )  # fmt: skip
        try:
            last, changed_at = size(), time.monotonic()
            while child.poll() is None:
                time.sleep(0.05)
                if (now := size()) != last:
                    last, changed_at = now, time.monotonic()
                    reach(now)
                elif time.monotonic() - changed_at > STALL_S:
                    return pip_fetch.CUT, json.dumps(f"nothing came for {STALL_S:g} s")
        finally:
            child.kill()
            child.wait()
        messages.seek(max(0, messages.seek(0, os.SEEK_END) - _LARGEST_MESSAGE))
        text = messages.read()
    return child.returncode, text.strip().rpartition("\n")[2] if command[1] == "-P" else text
