"""The load generator: a process that keeps N chat completions in flight and measures each of them.

It is a closed loop on raw protocols, so that it takes little of the machine that it measures. It checks every
answer (`answers.py`) and prints one JSON object a line: `measuring` after the warm-up, `measured`, and `done`
with the figures. `serving.py` starts it.
"""

import asyncio
import gc
import json
import math
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

import uvloop

from benchmarks.lib.measuring import percentile
from benchmarks.serving.connection import LoadConnection, LoadTarget, Recorder
from benchmarks.serving.requests import RequestMaker

GRACE_S = 10.0  # for answers that are due at the end; after that they are errors


@dataclass
class LoadFigures:
    """Figures of one level of concurrency; latencies are those of right answers."""

    concurrency: int
    seconds: float = 0.0
    requests: int = 0
    errors: int = 0
    requests_per_s: float = 0.0
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    ttft_p50_ms: float = math.nan
    cpu_us_per_request: float = math.nan
    error_kinds: dict[str, int] = field(default_factory=dict)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(
    target: LoadTarget, requests: RequestMaker, concurrency: int, warmup_s: float, duration_s: float
) -> LoadFigures:
    """Hold `concurrency` requests in flight for warm-up and measured time; return the latter's figures."""
    recorder = Recorder()
    connections = [LoadConnection(target, requests, recorder) for _ in range(concurrency)]
    for connection in connections:
        connection.open()
    await asyncio.sleep(warmup_s)
    print(json.dumps({"event": "measuring"}), flush=True)
    recorder.measuring = True
    began, cpu_began = time.perf_counter(), _cpu_s()
    await asyncio.sleep(duration_s)
    recorder.measuring = False
    recorder.stopping = True
    seconds, cpu_s = time.perf_counter() - began, _cpu_s() - cpu_began
    print(json.dumps({"event": "measured"}), flush=True)
    for task in (
        await asyncio.wait([asyncio.create_task(c.idle.wait()) for c in connections], timeout=GRACE_S)
    )[1]:
        task.cancel()
        recorder.count_problem(f"no answer within {GRACE_S:g} s of the end")
    for connection in connections:
        await connection.close()
    return summarize(recorder, concurrency, seconds, cpu_s)


def summarize(recorder: Recorder, concurrency: int, seconds: float, cpu_s: float) -> LoadFigures:
    """Return the figures of `seconds` that took `cpu_s` of CPU in this process."""
    latencies = sorted(recorder.latencies_s)
    count = len(latencies)
    return LoadFigures(
        concurrency=concurrency,
        seconds=seconds,
        requests=count,
        errors=recorder.problems.total(),
        requests_per_s=count / seconds,
        p50_ms=percentile(latencies, 0.50) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        ttft_p50_ms=percentile(sorted(recorder.first_bytes_s), 0.50) * 1e3,
        cpu_us_per_request=cpu_s / count * 1e6 if count else math.nan,
        error_kinds=dict(recorder.problems.most_common(5)),
    )


def main() -> None:
    """Measure what the one argument asks for, a JSON object, and print the figures; NaN becomes null."""
    asked = json.loads(sys.argv[1])
    address = urlsplit(asked["url"])
    target = LoadTarget(address.hostname or "127.0.0.1", address.port or 80, asked["tokens"], asked["stream"])
    requests = RequestMaker(address.netloc, asked["model"], asked["tokens"], asked["stream"])
    gc.disable()
    figures = uvloop.run(measure(target, requests, asked["concurrency"], asked["warmup"], asked["duration"]))
    plain = {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in asdict(figures).items()
    }
    print(json.dumps({"event": "done", **plain}), flush=True)


if __name__ == "__main__":
    main()
