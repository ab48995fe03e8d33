"""The walk of a request: what is counted, and what a recorder writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.walk.__main__ import RECORDER, ROOT, count_returns, show

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
        "gateway: 0 files, 0 of them only for requests, 0 returns",
        "router: 2 files, 1 of them only for requests, 0 returns",
        "  * shared/a.py: 1 functions",
        "    services/b.py: 1 functions",
        "leader: 0 files, 0 of them only for requests, 0 returns",
        "rank: 0 files, 0 of them only for requests, 0 returns",
        "all: 2 files, 1 of them only for requests (* runs without one, too)",
    ]


@pytest.mark.parametrize(
    ("files", "returns"),
    [
        ("", 0),
        ("a a b c", 0),  # one way
        ("a b a", 1),
        ("a b a b", 2),  # from b to a, and from a to b, which it had left as well
        ("a b a b a b", 2),  # each token repeats both
        ("a b c a", 1),
        ("a b c a c b a", 4),
        ("a t b t a", 1),  # t runs without a request, too
    ],
)
def test_a_return_is_a_call_into_a_file_that_the_walk_had_left(files: str, returns: int) -> None:
    assert count_returns([(file, "f") for file in files.split()], {"t"}) == returns


def test_help_is_printed_and_nothing_is_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.walk", "--help"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.startswith("usage: python -m tools.walk")
    assert "returns of the walk" in done.stdout
    assert not list(tmp_path.iterdir())


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
