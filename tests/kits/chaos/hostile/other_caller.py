"""Another caller beside a campaign of requests, and how long its answers take.

The time of an answer is noted by the clock, and as the CPU time that the rank spent meanwhile: the load of
the machine forges only the first.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import NamedTuple, TypeVar

import httpx
import psutil

from tests.kits.e2e.stack import Stack

QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
AT_ONCE = 4  # requests of a campaign
_PAUSE_S = 0.02
_Case = TypeVar("_Case")


class Took(NamedTuple):
    """Seconds of one answer, by the clock and of the rank's CPU time."""

    wall_s: float
    rank_s: float


class OtherCaller:
    """Asks one short question after another."""

    def __init__(self, http: httpx.Client, model: str, stack: Stack) -> None:
        self._http = http
        self._body = {"model": model, **QUESTION}
        self._rank = rank_of(stack)

    def ask(self, number: int, until: Event) -> list[Took]:
        """Returns what each answer took; asks so often, or until the event is set if that is later."""
        took: list[Took] = []
        while len(took) < number or not until.is_set():
            began, before = time.perf_counter(), cpu_s(self._rank)
            answer = self._http.post("/v1/chat/completions", json=self._body)
            assert answer.status_code == 200, answer.text
            took.append(Took(time.perf_counter() - began, cpu_s(self._rank) - before))
            time.sleep(_PAUSE_S)
        return took


def rank_of(stack: Stack) -> int:
    """Returns the process id of the only rank of a stack."""
    worker = psutil.Process(stack.pid_of("worker-g0"))
    return max(worker.children(recursive=True), key=lambda one: one.memory_info().rss).pid


def cpu_s(pid: int) -> float:
    """Returns the CPU time of all threads of a process."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def beside(
    other: OtherCaller, send: Callable[[_Case], object], cases: Iterable[_Case], until_s: float = float("inf")
) -> list[Took]:
    """Sends cases, some at a time, and returns what the other caller's answers took meanwhile.

    Args:
        until_s: Of the performance counter; cases after that are left out.
    """
    over = Event()

    def send_in_time(case: _Case) -> None:
        if time.perf_counter() < until_s:
            send(case)

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        asking = pool.submit(other.ask, 5, over)
        try:
            list(pool.map(send_in_time, cases))
        finally:
            over.set()
        return asking.result()


def quantile(seconds: Iterable[float], share: float) -> float:
    """Returns a quantile of some times."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
