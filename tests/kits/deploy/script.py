"""Runs `deploy/configure.py` as a plain script, with a fake `docker` where one is needed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy import configure


def run_configure(
    file: Path,
    what: str,
    *more: str,
    path: str = "",
    env: Mapping[str, str] = os.environ,
    timeout_s: float = 30.0,
) -> "subprocess.CompletedProcess[str]":
    """Runs it isolated, without site packages."""
    env = {**env, "PATH": path or os.environ["PATH"]}
    command = [sys.executable, "-IS", str(Path(configure.__file__)), what, *more, "--file", str(file)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def stand_in_docker(folder: Path, script: str) -> str:
    """Returns a PATH with a fake `docker`, which writes its calls to the file `calls`."""
    docker = folder / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\n{script}\n')
    docker.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"
