"""Installs torch without CUDA where there is no NVIDIA driver: `python deploy/install_torch.py INDEX`.

On Linux, PyPI's torch brings gigabytes of CUDA packages. `make install` runs this first, in `.venv`, with the
index of builds for CPUs (`TORCH_INDEX`). Only torch comes from there. Where that index cannot be reached, the
installation goes on with pip's own indexes. Needs nothing but Python and pip.
"""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRIVER = Path("/proc/driver/nvidia/version")
# an index that does not answer costs twice fifteen seconds, not pip's usual minute and a half or more
PATIENCE = ("--retries", "1", "--timeout", "15")


def installed() -> str:
    """The version of torch in this environment; empty: there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def pin() -> str:
    """The version that the project is tested with; a build for CPUs, as 2.13.0+cpu, suits it."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def driver(proc_file: Path = DRIVER) -> str:
    """What shows that there is an NVIDIA driver; empty: nothing does."""
    return str(proc_file) if proc_file.exists() else shutil.which("nvidia-smi") or ""


def main(arguments: list[str]) -> int:
    """Installs it, or says why it does not; 0 in every case, since torch may come from elsewhere."""
    (index,) = arguments or [""]
    if not index or sys.platform != "linux" or installed():
        return 0
    if found := driver():
        print(f"NVIDIA driver found ({found}): torch comes with CUDA, from pip's own index.", flush=True)
        return 0
    print(f"No NVIDIA driver: torch for CPUs comes from {index} (TORCH_INDEX).", flush=True)
    pip = [sys.executable, "-P", "-m", "pip"]
    command = [*pip, "install", "--disable-pip-version-check", "--no-deps", *PATIENCE]
    options = ["--index-url", index, pin()]
    done = subprocess.run([*command, *options], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(
            f"torch did not come from {index}: {_reason(done.stderr)}. It comes from pip's own index now, "
            "perhaps with gigabytes of CUDA packages. TORCH_INDEX names another index of builds for CPUs.",
            flush=True,
        )
    return 0


def _reason(errors: str) -> str:
    if "connection broken" in errors or "Could not fetch URL" in errors:
        return "it could not be reached"
    last = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR:")]
    return last[-1] if last else "pip gave no reason"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
