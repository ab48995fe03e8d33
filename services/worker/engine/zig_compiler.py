"""A C++ compiler for a machine that has none: the one in PyPI's `ziglang`, while the kernels compile.

It is installed into a temporary directory, with its caches, and removed afterwards. Only an installation uses
it (`make install`, `make wheel`, an image); ranks that start never download anything. Without a network there
are no kernels, as without a compiler. This module does not import torch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ZIGLANG = "ziglang==0.17.1"  # the version that the kernels' tests passed with
NEEDED_MB = 650  # 410 of the compiler, 140 of its caches, and some room
# the compiler's names for the variants of `build.TARGETS`
OPTIONS = {
    "avx512": ("-march=x86_64_v4+avx512vnni", "-s"),
    "avxvnni": ("-march=x86_64_v3+avxvnni", "-s"),
    "avx2": ("-march=x86_64_v3", "-s"),
}
COMPILE_LIMIT_S = 1800  # it compiles the C++ library, too: a minute of CPU time for each variant
_INSTALL_LIMIT_S = 1800


class NoZig(Exception):
    """The compiler could not be had; one sentence says why."""


@contextmanager
def temporary_compiler() -> Iterator[list[str]]:
    """The command of the compiler, whose directory and caches are removed at the end.

    Raises:
        NoZig: There is no room for it, or no index that has it.
    """
    room_mb = shutil.disk_usage(tempfile.gettempdir()).free // 2**20
    if room_mb < NEEDED_MB:
        raise NoZig(
            f"{tempfile.gettempdir()} has {room_mb} MB free and a temporary compiler needs {NEEDED_MB}; "
            "name another directory in TMPDIR"
        )
    with tempfile.TemporaryDirectory(prefix="ryz-zig-") as name:
        directory = Path(name)
        print(
            f"No C++ compiler here: {ZIGLANG} is fetched from PyPI (100 MB; 410 MB unpacked in {name}, "
            "removed afterwards).",
            flush=True,
        )
        _install(directory)
        caches = {f"ZIG_{kind}_CACHE_DIR": str(directory / "cache") for kind in ("GLOBAL", "LOCAL")}
        before = {variable: os.environ.get(variable) for variable in caches}
        os.environ.update(caches)
        try:
            yield [str(directory / "ziglang" / "zig"), "c++"]
        finally:
            for variable, value in before.items():
                if value is None:
                    del os.environ[variable]
                else:
                    os.environ[variable] = value


def _install(directory: Path) -> None:
    command = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir"]
    options = ["--no-deps", "--only-binary=:all:", "--retries", "1", "--target", str(directory), ZIGLANG]
    try:
        done = subprocess.run(
            [*command, *options], stderr=subprocess.PIPE, text=True, timeout=_INSTALL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoZig(f"pip could not fetch {ZIGLANG}: {error}") from error
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = reasons[-1].removeprefix("ERROR: ") if reasons else f"it ended with {done.returncode}"
        raise NoZig(f"pip could not fetch {ZIGLANG}: {reason}")
