"""The walk of a request: what is counted, and what a recorder writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.walk.__main__ import RECORDER, ROOT, count_returns, of_request, part_of, show

PROGRAM = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("ours", sys.argv[1])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
ours.before()
os.kill(os.getpid(), signal.SIGUSR2)
ours.recorded()
ours.recorded()
list(ours.suspended())
os.kill(os.getpid(), signal.SIGUSR2)
ours.after()
"""

OURS = """
def before(): pass
def inner(): pass
def recorded(): inner()
def suspended():
    yield 1
    inner()
def after(): pass
"""
READ, BEAT, TAKE = ("shared/bus.py", "read"), ("services/beats.py", "hear"), ("services/work.py", "take")


def test_pieces_that_run_without_a_request_are_not_of_it() -> None:
    beat, work = [READ, BEAT], [READ, TAKE, TAKE]
    assert of_request([beat], [beat, work, beat, [READ]]) == work
    assert of_request([[TAKE, READ]], [[READ]]) == [READ]  # another function began that piece
    assert of_request([], [work, beat]) == work + beat


def test_files_are_shown_with_lines_and_functions() -> None:
    lines = len((ROOT / "shared/identity.py").read_text().splitlines())
    walk = {"router": [("shared/identity.py", "a"), ("services/gone.py", "b"), ("shared/identity.py", "c")]}
    assert show(walk).splitlines() == [
        "gateway: 0 files, 0 returns",
        "router: 2 files, 1 returns",
        f"    shared/identity.py: {lines} lines, 2 functions",
        "    services/gone.py: 0 lines, 1 functions",
        "leader: 0 files, 0 returns",
        "rank: 0 files, 0 returns",
        "all: 2 files",
    ]


@pytest.mark.parametrize(
    ("name", "command", "part"),
    [
        ("ryz-router", ["python", "-P", "-m", "services.router"], "router"),
        ("ryz-leader", ["python -P -m services.worker"], "leader"),  # forked, with a title
        ("ryz-rank-0", ["python -P -m services.worker"], "rank"),
        ("ryz-kvstate", ["python -P -m services.kvstate"], ""),
        ("nats-server", ["nats-server", "-c", "nats.conf"], ""),
        ("ended", [], ""),
    ],
)
def test_a_process_is_known_by_its_name_or_its_command(name: str, command: list[str], part: str) -> None:
    assert part_of(name, command) == part


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
    ],
)
def test_a_return_is_a_call_into_a_file_that_the_walk_had_left(files: str, returns: int) -> None:
    assert count_returns([(file, "f") for file in files.split()]) == returns


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
    ours.write_text(OURS)
    env = {
        **os.environ,
        "PYTHONPATH": str(RECORDER),
        "RYZ_WALK_FOLDER": str(tmp_path),
        "RYZ_WALK_ROOT": f"{tmp_path}/",
    }
    subprocess.run([sys.executable, "-c", PROGRAM, str(ours)], env=env, check=True, timeout=120)
    (written,) = tmp_path.glob("*.json")
    recorded, suspended, inner = [["shared/ours.py", name] for name in ("recorded", "suspended", "inner")]
    pieces = json.loads(written.read_text())["pieces"]
    assert pieces == [[recorded, inner], [recorded, inner], [suspended], [suspended, inner]]
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL  # this process has no recorder
