"""Collects the facts that a measurement carries: the machine, the software, the commit.

A fact that a system does not report is "unknown".
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from shared.compiled_modules import find_build

_ROOT = Path(__file__).resolve().parents[2]
SERVING_PACKAGES = ("uvloop", "uvicorn", "nats-py", "msgspec", "fastapi")
ENGINE_PACKAGES = ("torch", "numpy", "transformers", "llama_cpp_python")


def machine(packages: Sequence[str] = SERVING_PACKAGES) -> dict[str, object]:
    """Return CPU, memory, kernel, Python, versions of packages; the load average shows other work.

    `compiled`: services use compiled modules.
    """
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "compiled": find_build() is not None,
        "packages": {name: _version(name) for name in packages},
        "load_average_1m": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Return the commit of this checkout, `-dirty` with changed files; `unknown` outside a checkout."""
    revision = _git("rev-parse", "--short=12", "HEAD")
    if not revision:
        return "unknown"
    return f"{revision}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else revision


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
