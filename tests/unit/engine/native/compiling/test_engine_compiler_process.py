"""A compiler ends with the process that wants it, and so do the processes that the compiler has started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.engine.native.compiling.compiler_process import run_compiler
from tests.kits.waiting import wait_for

ROOT = Path(__file__).parents[5]
CALLER = """
import sys
from services.worker.engine.native.compiling.compiler_process import run_compiler
run_compiler(["sh", "-c", sys.argv[1]], 600)
"""


def is_over(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="only the kernel of Linux tells of a parent's end")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["ordinary", "ignores SIGTERM"])
def test_a_caller_that_is_killed_leaves_no_compiler(tmp_path: Path, signum: int, trap: str) -> None:
    pids, draft = tmp_path / "pids", tmp_path / "draft"
    script = f"{trap}sleep 600 & echo $$ $! > {draft}; mv {draft} {pids}; wait"
    with subprocess.Popen([sys.executable, "-c", CALLER, script], cwd=ROOT) as caller:
        try:
            wait_for(pids.exists, "the compiler runs")
            started = [int(pid) for pid in pids.read_text().split()]
            assert not any(map(is_over, started))
            os.kill(caller.pid, signum)
            caller.wait()
            wait_for(lambda: all(map(is_over, started)), "driver and compiler end")
        finally:
            caller.kill()


def test_what_a_compiler_says_and_how_it_ends_is_returned() -> None:
    assert run_compiler(["sh", "-c", "echo out; echo wrong >&2; exit 3"], 60) == (3, "wrong\n")
    assert run_compiler(["sh", "-c", "kill -KILL $$"], 60) == (128 + signal.SIGKILL, "")


def test_a_compiler_that_is_not_there_is_named() -> None:
    status, errors = run_compiler(["/no/such/compiler"], 60)
    assert status == 127
    assert "/no/such/compiler" in errors
