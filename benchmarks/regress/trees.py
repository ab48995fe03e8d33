"""The source trees of the two commits: this checkout, and the base in a work tree of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lib.measuring import BenchError
from shared.host.own_python import module_command, module_environment

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def base_tree(commit: str) -> Iterator[Path]:
    """Give a tree of that commit for the time of a `with` block. Raises `BenchError` if there is none."""
    with TemporaryDirectory(prefix="ryz-regress-") as folder:
        tree = Path(folder) / "base"
        made = _git("worktree", "add", "--detach", str(tree), commit)
        if made.returncode:
            raise BenchError(f"there is no tree of {commit}: {made.stderr.strip()}")
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def commit_of(name: str) -> str:
    """Return the hash of a commit. Raises `BenchError` for what git does not know."""
    found = _git("rev-parse", "--short=12", "--verify", f"{name}^{{commit}}")
    if found.returncode:
        raise BenchError(f"git knows no commit {name}; name one that `git log` shows, such as HEAD~5")
    return found.stdout.strip()


def compile_tree(tree: Path) -> None:
    """Compile the modules of a tree that serving uses, which takes minutes. Raises `BenchError`."""
    command = module_command("tools.compile_modules")
    done = subprocess.run(command, cwd=tree, env=environment(tree, compiled=True), check=False)
    if done.returncode:
        raise BenchError(f"the modules of {tree} could not be compiled")


def environment(tree: Path, *, compiled: bool) -> Mapping[str, str]:
    """Return the environment in which this Python runs the code of a tree."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # what differs from start to start by itself, such as the order of sets, would be noise
    fixed = {"PYTHONHASHSEED": "0", **({} if compiled else {"RYZ_COMPILED": "off"})}
    return {**module_environment(without, tree), **fixed}


def bench_command(arguments: list[str]) -> list[str]:
    """Return the command of a bench that prints its report as JSON."""
    return [sys.executable, "-P", "-m", "cli", "bench", *arguments, "--json"]


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
