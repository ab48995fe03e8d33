"""The walk of a request: what is counted, and what a recorder writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.walk.__main__ import RECORDER, show

PROGRAM = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("ours", sys.argv[1])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
ours.before()
os.kill(os.getpid(), signal.SIGUSR2)
ours.recorded()
os.kill(os.getpid(), signal.SIGUSR2)
ours.after()
"""


def test_files_that_run_without_a_request_are_marked() -> None:
    idle = {"router": [("shared/a.py", "tick")]}
    walk = {"router": [("shared/a.py", "tick"), ("services/b.py", "take"), ("services/b.py", "take")]}
    assert show(idle, walk).splitlines() == [
        "gateway: 0 files, 0 of them only for requests",
        "router: 2 files, 1 of them only for requests",
        "  * shared/a.py: 1 functions",
        "    services/b.py: 1 functions",
        "leader: 0 files, 0 of them only for requests",
        "rank: 0 files, 0 of them only for requests",
        "all: 2 files, 1 of them only for requests (* runs without one, too)",
    ]


def test_a_process_writes_the_calls_between_two_signals(tmp_path: Path) -> None:
    ours = tmp_path / "shared" / "ours.py"
    ours.parent.mkdir()
    ours.write_text("def before(): pass\ndef recorded(): pass\ndef after(): pass\n")
    env = {
        **os.environ,
        "PYTHONPATH": str(RECORDER),
        "RYZ_WALK_FOLDER": str(tmp_path),
        "RYZ_WALK_ROOT": f"{tmp_path}/",
    }
    subprocess.run([sys.executable, "-c", PROGRAM, str(ours)], env=env, check=True, timeout=120)
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["calls"] == [["shared/ours.py", "recorded"]]
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL  # this process has no recorder
