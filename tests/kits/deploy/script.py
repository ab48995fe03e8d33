"""Runs `deploy/pin_images.py` as a plain script, with a fake `docker`."""

import os
import subprocess
import sys
from pathlib import Path

from deploy import pin_images


def run_pin_images(file: Path, path: str) -> "subprocess.CompletedProcess[str]":
    """Runs it isolated, without site packages."""
    command = [sys.executable, "-IS", str(Path(pin_images.__file__)), "--file", str(file)]
    env = {**os.environ, "PATH": path}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def stand_in_docker(folder: Path, script: str) -> str:
    """Returns a PATH with a fake `docker`, which writes its calls to the file `calls`."""
    docker = folder / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\n{script}\n')
    docker.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"
