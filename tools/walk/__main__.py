"""Counts the files that one streamed chat completion passes in gateway, router, leader and rank.

It starts a stack of the demo model with sources in place of compiled modules, and records all calls of our
functions in each process (`recorder/`) while one request is answered that is not the first one.

A file is passed if a function of it is called for the request. Calls are recorded in pieces: what a callback
or one step of a task calls until the event loop goes on, or a call of a plain loop. A piece is of the request
unless all its functions were also in one piece that the same function began while there was no request. So
heartbeats, timers and pings do not count, and what reads the bus counts for its messages about the request.
Nor do starts and first requests count, and messages only if they have functions of their own that are called.

It also counts the returns of the walk in each process. A return is a call from one file into another one that
the walk had left before. The same pair of files counts once, since each token repeats the walk.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from cli.stack.state import StateDir

ROOT = Path(__file__).resolve().parents[2]
RECORDER = Path(__file__).with_name("recorder")
START_S, IDLE_S, WRITE_S = 300.0, 4.0, 60.0
END_S = 0.3  # what the end of an answer leaves to do is of the request, too
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
Piece = list[tuple[str, str]]  # file and function of each call
PARTS = {"services.gateway": "gateway", "services.router": "router", "services.worker": "leader"}


class TracedStack:
    """A stack whose services record their calls.

    Args:
        folder: For its state and the recordings.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recordings = folder / "recordings"
        self._recordings.mkdir()
        env = {
            **os.environ,
            "PYTHONPATH": f"{RECORDER}{os.pathsep}{ROOT}",
            "RYZ_WALK_FOLDER": str(self._recordings),
            "RYZ_WALK_ROOT": f"{ROOT}/",
            "RYZ_COMPILED": "off",
        }
        options = [
            "--model",
            "demo",
            "--groups",
            "1",
            "--tensor-parallel",
            "1",
            "--routers",
            "1",
            "--port",
            "0",
        ]
        command = [sys.executable, "-P", "-m", "cli", "up", *options]
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )

    def await_ready(self) -> str:
        """Returns the gateway's address."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self.process.poll() is None:
            state = StateDir(self._folder / ".ryz").read()
            if state is not None and state.ready:
                return state.url
            time.sleep(0.1)
        raise SystemExit("the stack did not start; try `ryz up --model demo`")

    def parts(self) -> dict[int, str]:
        """The processes that a request passes, by their ids."""
        found: dict[int, str] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            part = part_of(process.name(), process.cmdline())
            if (
                part and found.get(process.ppid()) != part
            ):  # forked early, it has its parent's title for a while
                found[process.pid] = part
        if set(found.values()) != {*PARTS.values(), "rank"} or len(found) != len(PARTS) + 1:
            raise SystemExit(f"expected one process of each part, found {found}")
        return found

    def record(self, url: str = "") -> dict[str, list[Piece]]:
        """Returns the pieces of each part while a request is answered, or for a while if there is no URL."""
        parts = self.parts()
        for old in self._recordings.iterdir():
            old.unlink()
        self._signal(parts)
        if url:
            ask(url)
            time.sleep(END_S)
        else:
            time.sleep(IDLE_S)
        self._signal(parts)
        give_up = time.monotonic() + WRITE_S
        while len(list(self._recordings.glob("*.json"))) < len(parts):
            if time.monotonic() > give_up:
                raise SystemExit("a service wrote no recording")
            time.sleep(0.05)
        pieces: dict[str, list[Piece]] = {}
        for file in self._recordings.glob("*.json"):
            part = parts[int(file.name.partition("-")[0])]
            recorded = json.loads(file.read_text())["pieces"]
            pieces[part] = [[(name, function) for name, function in piece] for piece in recorded]
        return pieces

    @staticmethod
    def _signal(parts: dict[int, str]) -> None:
        for pid in parts:
            os.kill(pid, signal.SIGUSR2)
        time.sleep(0.05)  # until each of them has taken it


def part_of(name: str, command: Sequence[str]) -> str:
    """The part that a process is, or an empty text.

    Args:
        name: The process's name.
        command: Its command line; that of a forked service is one text, its title.
    """
    if name.startswith("ryz-rank"):
        return "rank"
    words = " ".join(command).split()
    return PARTS.get(words[-1], "") if words[-2:-1] == ["-m"] else ""


def ask(url: str) -> None:
    """Reads one streamed chat completion."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=60.0)
    answer.raise_for_status()


def of_request(idle: list[Piece], pieces: list[Piece]) -> list[tuple[str, str]]:
    """The calls of a process that are made for the request, in order; see the module.

    Args:
        idle: What ran without a request.
        pieces: What ran while the request was answered.
    """
    without: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = {}
    for piece in idle:
        without.setdefault(piece[0], set()).add(frozenset(piece))
    calls = []
    for piece in pieces:
        functions = frozenset(piece)
        if not any(functions <= other for other in without.get(piece[0], ())):
            calls += piece
    return calls


def count_returns(calls: list[tuple[str, str]]) -> int:
    """The returns of the walk in one process; see the module.

    Args:
        calls: File and function of each call, in order.
    """
    here, passed = "", set[str]()
    returns: set[tuple[str, str]] = set()
    for file, _ in calls:
        if file == here:
            continue
        if file in passed:
            returns.add((here, file))
        passed.add(file)
        here = file
    return len(returns)


def show(walk: dict[str, list[tuple[str, str]]]) -> str:
    """The files of each part in the order of their first call, with their lines and called functions."""
    lines, every = [], set()
    for part in ("gateway", "router", "leader", "rank"):
        calls = walk.get(part, [])
        files = list(dict.fromkeys(file for file, _ in calls))
        every |= set(files)
        lines.append(f"{part}: {len(files)} files, {count_returns(calls)} returns")
        for file in files:
            functions = dict.fromkeys(function for name, function in calls if name == file)
            path = ROOT / file
            length = len(path.read_text().splitlines()) if path.is_file() else 0
            lines.append(f"    {file}: {length} lines, {len(functions)} functions")
    lines.append(f"all: {len(every)} files")
    return "\n".join(lines)


def main() -> None:
    """Prints the walk."""
    argparse.ArgumentParser(
        prog="python -m tools.walk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = TracedStack(Path(folder))
        try:
            url = stack.await_ready()
            for _ in range(3):  # what happens once is not the walk
                ask(url)
            time.sleep(IDLE_S)  # what the ends of these answers leave to do
            idle = stack.record()
            walk = stack.record(url)
            print(show({part: of_request(idle[part], pieces) for part, pieces in walk.items()}))
        finally:
            stack.process.send_signal(signal.SIGINT)
            stack.process.wait(60)


if __name__ == "__main__":
    main()
