"""The load generator: keeps N chat completions in flight and measures each of them.

It is a closed loop on raw protocols, so that it takes little of the machine that it measures. It checks every
answer (`answers.py`). `serving.py` starts it in a process of its own.
"""

import asyncio
import gc
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from benchmarks.lib.measuring import percentiles
from benchmarks.serving.connection import LoadConnection, LoadTarget, Recorder
from benchmarks.serving.requests import http_requests

GRACE_S = 10.0  # for answers that are due at the end; after that they are errors


@dataclass
class LoadFigures:
    """Figures of one level of concurrency; latencies are those of right answers.

    `ttft_*` are times to the first text of streamed answers; `events_per_answer` counts the events that
    brought some.
    """

    concurrency: int
    seconds: float = 0.0
    requests: int = 0
    errors: int = 0
    requests_per_s: float = 0.0
    p50_ms: float = math.nan
    p95_ms: float = math.nan
    p99_ms: float = math.nan
    ttft_p50_ms: float = math.nan
    ttft_p95_ms: float = math.nan
    ttft_p99_ms: float = math.nan
    events_per_answer: float = math.nan
    cpu_us_per_request: float = math.nan
    error_kinds: dict[str, int] = field(default_factory=dict)


class RequestLoop(Protocol):
    """Keeps exactly one request in flight. `idle` is set while no answer is due."""

    idle: asyncio.Event

    def open(self) -> None:
        """Begin in the background."""

    async def close(self) -> None:
        """End, whatever it waits for."""


class Load:
    """Holds `concurrency` requests in flight from `begin` to the end of `measure`."""

    def __init__(
        self, *, url: str, model: str, tokens: int, stream: bool, concurrency: int, api_key: str = ""
    ) -> None:
        address = urlsplit(url)
        host = address.hostname or "127.0.0.1"
        self._target = LoadTarget(host, address.port or 80, tokens, stream, api_key)
        self._recorder = Recorder()
        self._figures = LoadFigures(concurrency)
        self._connections: list[RequestLoop] = []
        self._make: Callable[[], RequestLoop]
        if address.scheme == "grpc":
            from benchmarks.serving.grpc_calls import grpc_connections  # noqa: PLC0415 (needs `grpcio`)

            self._make = grpc_connections(self._target, model, self._recorder)
        elif address.scheme == "ws":
            from benchmarks.serving.realtime_calls import realtime_loops  # noqa: PLC0415 (needs `websockets`)

            self._make = realtime_loops(self._target, model, self._recorder)
        else:
            requests = http_requests(address.netloc, model, tokens, stream, self._target.authorization())
            self._make = lambda: LoadConnection(self._target, requests, self._recorder)

    async def begin(self, warmup_s: float) -> None:
        """Open the connections and let them work for a while."""
        for _ in range(self._figures.concurrency):
            self._connections.append(self._make())
            self._connections[-1].open()
        await asyncio.sleep(warmup_s)

    async def measure(self, duration_s: float) -> None:
        """Count the answers of that time."""
        self._recorder.measuring = True
        began, cpu_began = time.perf_counter(), _cpu_s()
        await asyncio.sleep(duration_s)
        self._recorder.measuring, self._recorder.stopping = False, True
        self._figures.seconds = time.perf_counter() - began
        self._figures.cpu_us_per_request = (_cpu_s() - cpu_began) * 1e6  # divided in `finish`

    async def finish(self) -> LoadFigures:
        """Wait for late answers, close the connections, and return the figures."""
        figures, recorder = self._figures, self._recorder
        ends = [asyncio.create_task(connection.idle.wait()) for connection in self._connections]
        for task in (await asyncio.wait(ends, timeout=GRACE_S))[1]:
            task.cancel()
            recorder.count_problem(f"no answer within {GRACE_S:g} s of the end")
        for connection in self._connections:
            await connection.close()
        latencies = sorted(recorder.latencies_s)
        figures.requests = len(latencies)
        figures.errors, figures.error_kinds = (
            recorder.problems.total(),
            dict(recorder.problems.most_common(5)),
        )
        figures.requests_per_s = len(latencies) / figures.seconds
        for name, times_s in (("", latencies), ("ttft", recorder.first_texts_s)):
            for field_name, value in percentiles(times_s, name).items():
                setattr(figures, field_name, value)
        figures.events_per_answer = recorder.events / (len(latencies) or math.nan)
        figures.cpu_us_per_request /= len(latencies) or math.nan
        return figures


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def start_load(**asked: object) -> Load:
    """Make a `Load` in a process that does nothing else."""
    gc.disable()
    return Load(**asked)  # type: ignore[arg-type]  # checked where the process is started
