"""Counts the files that one streamed chat completion passes in gateway, router, leader and rank.

It starts a stack of the demo model with sources in place of compiled modules, and records all calls of our
functions in each process (`recorder/`) while one request is answered. Files whose functions run without a
request as well (heartbeats, timers) are recorded before, and are marked.

It also counts the returns of the walk in each process. A return is a call from one file into another one that
the walk had left before. The same pair of files counts once, since each token repeats the walk. Files that
are marked do not count.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from cli.stack.state import StateDir

ROOT = Path(__file__).resolve().parents[2]
RECORDER = Path(__file__).with_name("recorder")
START_S, IDLE_S, WRITE_S = 120.0, 2.0, 10.0
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
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
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            command = process.cmdline()
            if process.name().startswith("ryz-rank"):
                found[process.pid] = "rank"
            elif command[-2:-1] == ["-m"] and command[-1] in PARTS:
                found[process.pid] = PARTS[command[-1]]
        return found

    def record(self, url: str = "") -> dict[str, list[tuple[str, str]]]:
        """Returns the calls of each part while a request is answered, or for a while if there is no URL."""
        parts = self.parts()
        for old in self._recordings.iterdir():
            old.unlink()
        self._signal(parts)
        if url:
            ask(url)
        else:
            time.sleep(IDLE_S)
        self._signal(parts)
        give_up = time.monotonic() + WRITE_S
        while len(list(self._recordings.glob("*.json"))) < len(parts):
            if time.monotonic() > give_up:
                raise SystemExit("a service wrote no recording")
            time.sleep(0.05)
        calls: dict[str, list[tuple[str, str]]] = {}
        for file in self._recordings.glob("*.json"):
            part = parts[int(file.name.partition("-")[0])]
            calls[part] = [(name, function) for name, function in json.loads(file.read_text())["calls"]]
        return calls

    @staticmethod
    def _signal(parts: dict[int, str]) -> None:
        for pid in parts:
            os.kill(pid, signal.SIGUSR2)
        time.sleep(0.05)  # until each of them has taken it


def ask(url: str) -> None:
    """Reads one streamed chat completion."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=60.0)
    answer.raise_for_status()


def count_returns(calls: list[tuple[str, str]], beside: set[str]) -> int:
    """The returns of the walk in one process; see the module.

    Args:
        calls: File and function of each call, in order.
        beside: Files that are left out.
    """
    here, passed = "", set[str]()
    returns: set[tuple[str, str]] = set()
    for file, _ in calls:
        if file in beside or file == here:
            continue
        if file in passed:
            returns.add((here, file))
        passed.add(file)
        here = file
    return len(returns)


def show(idle: dict[str, list[tuple[str, str]]], walk: dict[str, list[tuple[str, str]]]) -> str:
    """The files of each part in the order of their first call."""
    lines, every, without = [], set(), set()
    for part in ("gateway", "router", "leader", "rank"):
        files = list(dict.fromkeys(file for file, _ in walk.get(part, ())))
        beside = {file for file, _ in idle.get(part, ())}
        every |= set(files)
        without |= set(files) - beside
        returns = count_returns(walk.get(part, []), beside)
        only = len(set(files) - beside)
        lines.append(f"{part}: {len(files)} files, {only} of them only for requests, {returns} returns")
        for file in files:
            functions = dict.fromkeys(function for name, function in walk[part] if name == file)
            lines.append(f"  {'*' if file in beside else ' '} {file}: {len(functions)} functions")
    lines.append(
        f"all: {len(every)} files, {len(without)} of them only for requests (* runs without one, too)"
    )
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
            print(show(idle, stack.record(url)))
        finally:
            stack.process.send_signal(signal.SIGINT)
            stack.process.wait(60)


if __name__ == "__main__":
    main()
