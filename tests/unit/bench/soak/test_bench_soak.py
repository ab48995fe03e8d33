"""`ryz bench soak`: its figures, its plots, what it hits, and how it judges answers."""

import asyncio
import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.soak.charts import line_chart
from benchmarks.soak.faults import find_target, inject
from benchmarks.soak.figures import figures, incident_times, leaks, slope_mib_per_hour
from benchmarks.soak.load import Ending, MixedLoad
from benchmarks.soak.report import write_report
from benchmarks.soak.samples import Sample, take_samples

MIB = 2**20


def sample(at_s: float, mib: float, pid: int = 7, service: str = "router", files: int = 9) -> Sample:
    return Sample(at_s, service, pid, int(mib * MIB), files, 3)


def test_availability_counts_answers_owed_and_incidents_are_failures_side_by_side() -> None:
    endings = [
        *(Ending(n, 0.5, "stream") for n in range(96)),
        Ending(5, 1, "leaves", "left"),
        Ending(10, 1, "whole", "503 no_group"),
        Ending(12, 1, "whole", "503 no_group"),
        Ending(40, 2, "stream", "the stream ended early"),
    ]
    found = figures(3600, endings, [], [])
    assert (found["requests"], found["left_by_clients"], found["failed"]) == (100, 1, 3)
    assert found["availability"] == pytest.approx(96 / 99, abs=1e-6)
    assert found["errors"] == {"503 no_group": 2, "the stream ended early": 1}
    assert found["errors_by_kind"] == {"whole": 2, "stream": 1}
    assert (found["incidents"], found["mtbf_s"]) == (2, 1800.0)
    assert incident_times([one for one in endings if one.failed]) == [(11, 13), (42, 42)]
    calm = figures(60, endings[:96], [], [])
    assert (calm["availability"], calm["mtbf_s"], calm["mttr_s"]) == (1.0, None, None)
    assert figures(60, [], [], [])["availability"] is None


def test_a_leak_is_the_slope_of_one_life_after_it_is_warm() -> None:
    warm = [sample(at, 100 + 36 * at / 3600) for at in range(0, 7200, 10)]
    restarted = [sample(at, 300, pid=8) for at in range(7200, 7300, 10)]
    filling = [sample(at, min(100, at), service="gateway", files=9 + at // 60) for at in range(0, 3600, 10)]
    found = leaks([*warm, *restarted, *filling])
    assert found["router"]["starts"] == 2
    assert found["router"]["memory_mib_per_hour"] == pytest.approx(36, abs=0.1)
    assert found["gateway"]["memory_mib_per_hour"] == pytest.approx(
        0, abs=0.01
    )  # it filled while it got warm
    assert found["gateway"]["files_grown"] == 59
    assert slope_mib_per_hour(restarted) is None


def test_a_chart_is_svg_with_all_lines_and_marks() -> None:
    chart = line_chart(
        "a < b", {"p50": [(0, 1.0), (1, 3.0)], "p99": [(0, float("nan"))]}, unit="s", until=2, marks=[1]
    )
    root = ET.fromstring(chart)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "p50", "p99", "2 min", "3"} <= set(texts)
    assert "nan" not in chart
    ET.fromstring(line_chart("none", {"x": []}, unit="s", until=0))


async def test_a_killed_process_is_waited_for_until_another_one_is_ready() -> None:
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    asked: list[float] = []
    pid, reads = victim.pid, 0

    def services() -> Mapping[str, tuple[int, bool]]:
        nonlocal reads
        reads += 1
        # the state file still has the old process for a while, and says that it is ready
        now = pid if victim.returncode is None or reads < 8 else 1
        return {f"{part}-0": (now, True) for part in ("router", "kvstate", "redis", "gateway", "nats")}

    async def is_serving(since: float) -> bool:
        asked.append(since)
        return len(asked) > 2

    chance, fault = random.Random(1), None
    while fault is None:  # what has no process here, such as a rank, is passed over
        fault = await inject(services, is_serving, chance, 0.0)
    assert await victim.wait() == -9
    assert fault.kind == "kill"
    assert reads >= 8
    assert fault.repaired_s >= 0.1
    assert len(asked) == 3
    assert min(asked) > fault.at_s


def test_only_what_is_ready_is_hit_and_ranks_are_children_of_their_leader() -> None:
    chance = random.Random(0)
    assert find_target({"router": (5, True), "router-2": (6, False)}, "router", chance) == ("router", 5)
    assert find_target({"router": (5, False)}, "router", chance) is None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert find_target({"worker-g0": (child.pid, True)}, "rank", chance) is None  # it has no ranks
        assert [
            one.service
            for one in take_samples({"worker-g0": (child.pid, True), "gone": (2**22 - 1, True)}, 1.0)
        ] == ["worker-g0"]
    finally:
        child.kill()
        child.wait()


ANSWERS: dict[str, Any] = {}


async def answer(request: Request) -> Response:
    """A gateway that does what the test says."""
    body = await request.json()
    if not body["stream"]:
        return JSONResponse({}, status_code=ANSWERS["status"], headers={"X-Ryz-Reason": "no_group"})

    async def events() -> Any:
        for number in range(3):
            yield f"data: {json.dumps({'id': number})}\n\n"
            await asyncio.sleep(0)
        yield ANSWERS["end"]

    return StreamingResponse(events(), media_type="text/event-stream")


@pytest.mark.parametrize(
    ("status", "end", "streamed", "whole"),
    [
        (200, "data: [DONE]\n\n", "", ""),
        (503, 'data: {"error": {"code": "group_lost"}}\n\n', "event: group_lost", "503 no_group"),
        (404, "", "the stream ended early", "404 no_group"),
    ],
)
async def test_the_load_says_how_each_request_ended(
    monkeypatch: pytest.MonkeyPatch, status: int, end: str, streamed: str, whole: str
) -> None:
    import httpx  # noqa: PLC0415

    ANSWERS.update(status=status, end=end)
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    original = httpx.AsyncClient

    def client(**options: Any) -> httpx.AsyncClient:
        options.pop("limits")
        return original(**options, transport=httpx.ASGITransport(app=app))

    monkeypatch.setattr("benchmarks.soak.load.httpx.AsyncClient", client)
    monkeypatch.setattr("benchmarks.soak.load.PAUSE_S", 0.0)
    load = MixedLoad("http://x", "demo", clients=2, tokens=8, seed=3)
    running = asyncio.create_task(load.run())
    while len(load.endings) < 60 and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    by_kind: dict[str, set[str]] = {}
    for one in load.endings:
        by_kind.setdefault(one.kind, set()).add(one.error)
    assert by_kind["stream"] == {streamed}
    assert by_kind["whole"] == by_kind["schema"] == {whole}
    assert by_kind["session"] <= {streamed, whole}
    assert by_kind["leaves"] <= {"left", streamed}
    assert "left" in by_kind["leaves"]


def test_the_report_is_written_with_its_plots(tmp_path: Path) -> None:
    endings = [Ending(n, 0.5, "stream") for n in range(300)]
    samples = [sample(at, 100) for at in range(0, 300, 10)]
    machine = {"usable_cores": 2, "cpu": "a processor", "load_average_1m": 0.1}
    about = {"machine": machine, "commit": "abc", "command": "ryz bench soak"}
    report = {"seconds": 300.0, **figures(300, endings, [], samples), **about}
    write_report(tmp_path / "soak", report, endings, [], samples)
    page = (tmp_path / "soak" / "report.md").read_text()
    assert "| availability | 100.0000% |" in page
    assert "| MTBF | no incident |" in page
    for name in ("availability", "times", "memory", "repairs"):
        ET.parse(tmp_path / "soak" / f"{name}.svg")
        assert f"({name}.svg)" in page
    assert json.loads((tmp_path / "soak" / "report.json").read_text())["requests"] == 300
