"""Checks that malformed input leaves a stack unchanged: processes, idleness, error logs and memory."""

import json
from pathlib import Path

import httpx
import psutil

from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for

SERVICES = ("gateway", "router", "router-2", "kvstate", "worker-g0", "worker-g1")
KINDS = ["gateway", "kvstate", "router", "router", "worker", "worker"]
MOST_GROWTH = 160 * 2**20  # bytes per process, for caches that fill up and memory that the allocator keeps
IDLE_S = 60.0
QUESTION = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "still there?"}]}


class Watch:
    """Records the state of the stack; `check` compares with it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._pids = self._now()
        self._sizes = {name: self._size(name) for name in SERVICES}
        self._read = {name: self._log(name).stat().st_size for name in SERVICES}

    def check(self) -> None:
        """Checks, also under load, that no service was restarted, and that a valid request is answered."""
        assert self._now() == self._pids, "a service was started again"
        assert self.bugs() == []
        wait_for(self._answers, "a real request is answered")

    def check_at_rest(self) -> None:
        """As `check`; also checks that the stack becomes idle and that memory is within bounds."""
        self.check()
        wait_for(lambda: self._busy() == {}, "nothing runs or waits any more", IDLE_S)
        grown = {name: self._size(name) - self._sizes[name] for name in SERVICES}
        assert max(grown.values()) < MOST_GROWTH, grown
        self.check()

    def bugs(self) -> list[str]:
        """Errors and stack traces in the logs since the start, five at most."""
        found = []
        for name in SERVICES:
            with self._log(name).open("rb") as file:
                file.seek(self._read[name])
                lines = file.read().decode(errors="replace").splitlines()
            for line in lines:
                entry = json.loads(line) if line.startswith("{") else {"level": "error"}
                if entry.get("level") in {"error", "critical"} or "exception" in entry:
                    found.append(f"{name}: {line[:3000]}")
        return found[:5]

    def _answers(self) -> bool:
        try:
            answer = httpx.post(f"{self.stack.state.url}/v1/chat/completions", json=QUESTION, timeout=10)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def _busy(self) -> dict[str, object]:
        """The activity of each service that is not idle."""
        services = self.stack.status()["services"]
        assert sorted(one["service"] for one in services) == KINDS
        busy: dict[str, object] = {}
        for one in services:
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
        return self.stack.state_dir.log(name)
