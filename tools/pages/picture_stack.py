"""The stack that the pictures of the pages show: its own state, load on it, and the loss of a group."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cli.stack.state import StateDir

MODEL = "smollm2-135m"
START_S = 400.0
QUESTIONS = (
    "Give me three tips for better sleep.",
    "Tell me about the sea.",
    "What can I cook with rice and eggs?",
    "Why is the sky blue?",
    "Tell me about Python.",
)


@dataclass
class PictureStack:
    """A stack that runs.

    Attributes:
        url: Of its gateway.
        folder: Its state is in `.ryz` there.
    """

    url: str
    folder: Path
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def run(self, *words: str) -> Any:
        """Runs a command of `ryz` with `--json`, and returns what it printed."""
        return json.loads(_ryz(self.folder, *words, "--json"))

    def admin_key(self) -> str:
        """The first admin key."""
        return (self.folder / ".ryz/admin.key").read_text().strip()

    def remember(self, count: int = 4) -> None:
        """Begins conversations, so that there are some to be listed."""
        for number in range(count):
            with self._client("", number) as http:
                _ask(http, number, max_tokens=40)

    def begin_load(self, key: str = "", clients: int = 4) -> None:
        """Has clients ask one question after another, each in a conversation of its own, until `end_load`."""
        self._over.clear()
        for number in range(clients):
            thread = threading.Thread(target=self._ask_on, args=(key, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end_load(self) -> None:
        """Lets the clients end after their answers."""
        self._over.set()
        while self._threads:
            self._threads.pop().join()

    def kill_busiest_leader(self) -> None:
        """Kills the leader of the group that runs most requests."""
        services = self.run("status")["services"]
        leaders = [one for one in services if "group" in one["detail"]]
        busiest = max(leaders, key=lambda one: one["detail"]["running"])
        os.kill(busiest["pid"], signal.SIGKILL)

    def _ask_on(self, key: str, number: int) -> None:
        with self._client(key, number) as http:
            while not self._over.is_set():
                _ask(http, number, max_tokens=120)

    def _client(self, key: str, number: int) -> httpx.Client:
        headers = {"X-Session-Id": f"picture-{number}"} | ({"Authorization": f"Bearer {key}"} if key else {})
        return httpx.Client(base_url=self.url, headers=headers, timeout=600)


@contextmanager
def picture_stack() -> Iterator[PictureStack]:
    """A stack of two groups for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="ryz-pictures-") as name:
        folder = Path(name)
        ports = ("--port", "0", "--nats-port", "0", "--redis-port", "0")
        _ryz(folder, "up", "--detach", "--model", MODEL, "--groups", "2", *ports)
        state = StateDir(folder / ".ryz").read()
        if state is None:
            raise SystemExit(f"the stack that was started in {folder} has ended; its logs are in .ryz/logs")
        stack = PictureStack(state.url, folder)
        try:
            yield stack
        finally:
            stack.end_load()
            _ryz(folder, "down")


def _ask(http: httpx.Client, number: int, max_tokens: int) -> None:
    said = [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    body = {"model": MODEL, "max_tokens": max_tokens, "messages": said}
    http.post("/v1/chat/completions", json=body).raise_for_status()


def _ryz(folder: Path, *words: str) -> str:
    """Runs `ryz` and returns its output; raises `SystemExit` with what it said if it failed."""
    command = [sys.executable, "-P", "-m", "cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise SystemExit(f"ryz {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout
