"""Sees that garbage leaves a stack as it was: same processes, nothing stuck, no bug, bounded memory."""

import json
from pathlib import Path

import httpx
import psutil

from tests.kits.e2e.stack import Stack, wait_for

SERVICES = ("gateway", "router", "kvstate", "worker-g0", "worker-g1")
MOST_GROWTH = 160 * 2**20  # of one process: caches that fill up to their limits, and what the allocator keeps
IDLE_S = 60.0
QUESTION = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "still there?"}]}


class Watch:
    """Remembers how the stack is now; `check` compares."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._pids = self._now()
        self._sizes = {name: self._size(name) for name in SERVICES}
        self._read = {name: self._log(name).stat().st_size for name in SERVICES}

    def check(self) -> None:
        """In mid-stream: everybody is alive, and a real request is answered."""
        assert self._now() == self._pids, "a service was started again"
        assert self.bugs() == []
        wait_for(self._answers, "a real request is answered", 20.0)

    def check_at_rest(self) -> None:
        """At the end: besides, everybody tells its status, nothing runs or waits, memory is in bounds."""
        self.check()
        wait_for(lambda: self._busy() == {}, "nothing runs or waits any more", IDLE_S)
        grown = {name: self._size(name) - self._sizes[name] for name in SERVICES}
        assert max(grown.values()) < MOST_GROWTH, grown
        self.check()

    def bugs(self) -> list[str]:
        """What the logs have of errors since the beginning, and every trace."""
        found = []
        for name in SERVICES:
            with self._log(name).open("rb") as file:
                file.seek(self._read[name])
                lines = file.read().decode(errors="replace").splitlines()
            for line in lines:
                told = json.loads(line) if line.startswith("{") else {"level": "error"}
                if told.get("level") in {"error", "critical"} or "exception" in told:
                    found.append(f"{name}: {line[:3000]}")
        return found[:5]

    def _answers(self) -> bool:
        try:
            answer = httpx.post(f"{self.stack.state.url}/v1/chat/completions", json=QUESTION, timeout=10)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def _busy(self) -> dict[str, object]:
        """What is not at rest, by service."""
        told = self.stack.status()["services"]
        assert sorted(one["service"] for one in told) == ["gateway", "kvstate", "router", "worker", "worker"]
        busy: dict[str, object] = {}
        for one in told:
            detail = one["detail"]
            load = detail.get("load", {})
            if one["state"] != "ready" or detail.get("running") or load.get("running") or load.get("waiting"):
                busy[detail.get("group", one["service"])] = {"state": one["state"], **detail}
        return busy

    def _now(self) -> dict[str, tuple[int, int]]:
        return {one.name: (one.pid, one.restarts) for one in self.stack.state.services}

    def _size(self, name: str) -> int:
        size: int = psutil.Process(self.stack.pid_of(name)).memory_info().rss
        return size

    def _log(self, name: str) -> Path:
        return self.stack.place.log(name)
